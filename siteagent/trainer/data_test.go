package trainer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

func TestAResultMayUseItsTasksDataOnlyAndSaysWhich(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		task := r.task("a", time.Hour)
		task.Data = []trainerv1.DataRange{{Begin: 10, End: 20}, {Begin: 20, End: 30}, {Begin: 40, End: 50}, {Begin: 0, End: 5, Pass: 1}}
		end := r.start(context.Background(), task, nil)
		if got := r.want(200, "GET", "/v1/task", ""); !strings.Contains(got, `"data":[{"begin":10,"end":20},`) || !strings.Contains(got, `{"begin":0,"end":5,"pass":1}]`) {
			t.Errorf("task %s", got)
		}
		path := r.weights("r")
		many := strings.TrimSuffix(strings.Repeat(`{"begin":10,"end":11},`, maxConsumed+1), ",")
		for consumed, want := range map[string]string{
			``:                                 "round.data",
			`[]`:                               "consumed is missing",
			`[{"begin":9,"end":12}]`:           "0:9-12 is not in the task's data",
			`[{"begin":25,"end":31}]`:          "not in the task's data",
			`[{"begin":29,"end":41}]`:          "not in the task's data",
			`[{"begin":45,"end":46,"pass":1}]`: "not in the task's data",
			`[{"begin":10,"end":11,"pass":2}]`: "not in the task's data",
			`[{"begin":12,"end":12}]`:          "empty or backward",
			`[{"begin":12,"end":11}]`:          "empty or backward",
			`[{"begin":12,"end":15},{"begin":14,"end":16}]`:        "0:14-16 does not lie behind 0:12-15",
			`[{"begin":0,"end":5,"pass":1},{"begin":10,"end":11}]`: "does not lie behind",
			`[` + many + `]`: "at most 1024",
		} {
			body := fmt.Sprintf(`{"path":%q,"steps":1,"samples":1`, path)
			if consumed != "" {
				body += `,"consumed":` + consumed
			}
			if got := r.want(400, "POST", "/v1/tasks/a/result", body+"}"); !strings.Contains(got, want) {
				t.Errorf("%.60s: %s, want %q", consumed, got, want)
			}
		}
		r.want(204, "POST", "/v1/tasks/a/result",
			fmt.Sprintf(`{"path":%q,"steps":1,"samples":1,"consumed":[{"begin":10,"end":12},{"begin":12,"end":30},{"begin":49,"end":50},{"begin":0,"end":5,"pass":1}]}`, path))
		if e := <-end; e.err != nil || len(e.Result.Consumed) != 4 {
			t.Error(e.err, e.Result)
		}
	})
}

func TestWithoutDataNothingIsConsumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		end := r.start(context.Background(), r.task("a", time.Hour), nil)
		if got := r.want(200, "GET", "/v1/task", ""); strings.Contains(got, "data") {
			t.Errorf("task %s", got)
		}
		body := fmt.Sprintf(`{"path":%q,"steps":1,"samples":1`, r.weights("r"))
		if got := r.want(400, "POST", "/v1/tasks/a/result", body+`,"consumed":[{"begin":0,"end":1}]}`); !strings.Contains(got, "no data") {
			t.Error(got)
		}
		r.want(204, "POST", "/v1/tasks/a/result", body+"}")
		if e := <-end; e.err != nil {
			t.Error(e.err)
		}
	})
}

// FuzzConsumed holds the check against a set of samples.
func FuzzConsumed(f *testing.F) {
	f.Add([]byte{0, 2, 8}, []byte{0, 2, 4, 0, 4, 8})
	f.Add([]byte{0, 2, 8, 0, 8, 9, 1, 0, 3}, []byte{0, 7, 9, 1, 0, 1})
	ranges := func(b []byte) (out []trainerv1.DataRange) {
		for ; len(b) >= 3; b = b[3:] {
			out = append(out, trainerv1.DataRange{Pass: uint64(b[0]), Begin: uint64(b[1]), End: uint64(b[2])})
		}
		return out
	}
	f.Fuzz(func(t *testing.T, data, used []byte) {
		task := trainerv1.Task{}
		for _, r := range ranges(data) { // a coordinator's is in order
			if n := len(task.Data); r.Begin < r.End && (n == 0 || !before(r, task.Data[n-1])) {
				task.Data = append(task.Data, r)
			}
		}
		leased := map[[2]uint64]bool{}
		for _, r := range task.Data {
			for i := r.Begin; i < r.End; i++ {
				leased[[2]uint64{r.Pass, i}] = true
			}
		}
		res := trainerv1.Result{Steps: 1, Consumed: ranges(used)}
		good, seen := len(res.Consumed) <= maxConsumed && (len(res.Consumed) > 0) == (len(task.Data) > 0), [2]uint64{}
		for i, r := range res.Consumed {
			good = good && r.Begin < r.End && (i == 0 || r.Pass > seen[0] || r.Pass == seen[0] && r.Begin >= seen[1])
			seen = [2]uint64{r.Pass, r.End}
			for k := r.Begin; k < r.End; k++ {
				good = good && leased[[2]uint64{r.Pass, k}]
			}
		}
		if err := checkConsumed(task, &res); (err == nil) != good {
			t.Fatalf("%v of %v: %v", res.Consumed, task.Data, err)
		}
	})
}
