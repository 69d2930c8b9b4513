package main

import "time"

// stepSeconds of one local step of a site, with its share of merging and
// measuring, by task; measured on one core of a 2-core virtual machine.
var stepSeconds = map[string]float64{mnistTask: 0.0005, textTask: 0.028}

// estimate is how long jobs take on so many processors with nothing else on them.
func estimate(jobs []job, processors int) time.Duration {
	seconds, longest := 0.0, 0.0
	for _, j := range jobs {
		s := j.s.work() * float64(j.s.Steps) * stepSeconds[j.s.Task]
		seconds += s
		longest = max(longest, s)
	}
	// A run has one processor.
	seconds = max(longest, seconds/float64(max(1, processors)))
	d := time.Duration(seconds * float64(time.Second))
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}
