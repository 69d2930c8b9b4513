package main

import (
	"testing"
	"time"
)

func TestAnEstimateFollowsTheWork(t *testing.T) {
	jobsOf := func(args ...string) []job {
		o, err := parse(args, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := o.jobs()
		if err != nil {
			t.Fatal(err)
		}
		return jobs
	}
	one := jobsOf("-tasks", "lm", "-splits", iid, "-churn", noChurn, "-sites", "4", "-seeds", "1", "-variants", "dm", "-rounds", "50")
	if got := estimate(one, 1); got != 56*time.Second {
		t.Errorf("50 rounds of 4 sites and 10 steps: %s, want 56s", got)
	}
	if got := estimate(one, 8); got != 56*time.Second {
		t.Errorf("one run on 8 processors: %s, want 56s", got)
	}
	four := jobsOf("-tasks", "lm", "-splits", iid, "-churn", noChurn, "-sites", "4", "-seeds", "1,2,3,4", "-variants", "dm", "-rounds", "50")
	if got := estimate(four, 2); got != 112*time.Second {
		t.Errorf("four runs on two processors: %s, want 1m52s", got)
	}
	half := jobsOf("-tasks", "lm", "-splits", iid, "-churn", "half", "-sites", "4", "-seeds", "1", "-variants", "dm", "-rounds", "50")
	if got := estimate(half, 1); got != 28*time.Second {
		t.Errorf("half of the sites away: %s, want 28s", got)
	}
	if full := estimate(jobsOf(), 2); full < time.Hour || full > 6*time.Hour {
		t.Errorf("the whole grid: %s", full)
	}
}
