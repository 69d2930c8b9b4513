package trainer

import (
	"fmt"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// maxConsumed is how many ranges a result may have used.
const maxConsumed = 1024

// checkConsumed refuses a result that does not say which samples of the task's
// data it used, or that used others: its round's update would be refused.
func checkConsumed(t trainerv1.Task, res *trainerv1.Result) error {
	used := res.Consumed
	switch {
	case len(used) > 0 && len(t.Data) == 0:
		return fmt.Errorf("consumed: the task has no data, so none can be consumed")
	case len(used) == 0 && len(t.Data) > 0 && res.Steps > 0:
		return fmt.Errorf("consumed is missing: say which samples of the task's data the %d steps used; in Python draw them from round.data, or submit(consumed=...)", res.Steps)
	case len(used) > maxConsumed:
		return fmt.Errorf("consumed: %d ranges, at most %d: use the task's data in its order, and shuffle by how the corpus is numbered", len(used), maxConsumed)
	}
	for i, r := range used {
		switch {
		case r.Begin >= r.End:
			return fmt.Errorf("consumed: range %s is empty or backward", show(r))
		case i > 0 && before(r, used[i-1]):
			return fmt.Errorf("consumed: %s does not lie behind %s: ranges go upward and do not overlap", show(r), show(used[i-1]))
		case !covered(r, t.Data):
			return fmt.Errorf("consumed: %s is not in the task's data: use those samples only", show(r))
		}
	}
	return nil
}

// before says whether r begins before b ends.
func before(r, b trainerv1.DataRange) bool {
	return r.Pass < b.Pass || r.Pass == b.Pass && r.Begin < b.End
}

// covered says whether all of r is in data, which is ascending.
func covered(r trainerv1.DataRange, data []trainerv1.DataRange) bool {
	for _, d := range data {
		if d.Pass != r.Pass || d.End <= r.Begin || d.Begin > r.Begin {
			continue
		}
		if r.Begin = d.End; r.Begin >= r.End {
			return true
		}
	}
	return false
}

func show(r trainerv1.DataRange) string { return fmt.Sprintf("%d:%d-%d", r.Pass, r.Begin, r.End) }
