package director

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/store"
)

// A federation runs through, and again with a restart every few minutes: in the
// middle of windows, minimum times, holds, cooldowns, confirmations, overrides
// and rounds. Nothing that is told differs.
func TestRestartsChangeNothing(t *testing.T) {
	longBubble(t)
	type outcome struct {
		changes map[string][]float64
		told    map[string][]string // by point
		memory  string
	}
	live := func(t *testing.T, restartEvery int) (o outcome) {
		synctest.Test(t, func(t *testing.T) {
			clock := atSpeed(t, 60)
			files, err := store.OpenFiles(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			policy := below100(2, 2)
			policy.MinimumOn, policy.Cooldown = 20*time.Minute, 25*time.Minute
			zeros := below100(1, 1)
			members := &recorder{clock: clock}
			var round atomic.Uint64
			// Sources answer in this order always, z the last: what others say of a
			// moment is known when it is judged.
			site := func(name string, values []*float64) Site {
				return Site{Name: name, Policy: policy, Sanity: &sanity.Policy{}, Provisioning: 4 * time.Minute, Drain: time.Minute,
					Source:   of(name, 0, &scripted{clock: clock, values: values}),
					Second:   of(name, 0, &scripted{clock: clock, values: v(repeat(60, 100)...)}),
					Forecast: foresees(clock, 60, 60, 500, 60, 60, 60)}
			}
			a := append(append(append(repeat(60, 8), repeat(120, 6)...), repeat(60, 8)...), repeat(-1, 10)...)
			b := append(append(repeat(500, 3), repeat(50, 20)...), repeat(70, 10)...)
			c := Config{Federation: "f", Membership: members, Clock: clock, Store: files, Facts: alike, Round: round.Load,
				Planner: &planner.Config{Wanted: 1, Step: 5 * time.Minute},
				Sites: []Site{site("a", v(a...)), site("b", v(b...)),
					{Name: "z", Policy: zeros, Sanity: &sanity.Policy{}, Source: of("z", 5*time.Millisecond, &scripted{clock: clock, values: v(20, 0, 0, 0, 500, 0, 500)})},
					{Name: "o", Policy: zeros, Source: of("o", 0, &scripted{clock: clock, values: v(repeat(500, 100)...)})}},
			}
			d, stop := run(t, c)
			for minute := 1; minute <= 150; minute++ {
				until(clock, float64(minute)+0.5)
				if minute == 61 {
					if err := d.Override("o", true, t0.Add(83*time.Minute), "test"); err != nil {
						t.Fatal(err)
					}
				}
				if minute%10 == 9 {
					round.Add(1)
				}
				if restartEvery > 0 && minute%restartEvery == 2 {
					stop()
					d, stop = run(t, c)
				}
			}
			o.told = map[string][]string{}
			o.changes = map[string][]float64{}
			for _, s := range c.Sites {
				for _, minute := range members.changes(s.Name) {
					o.changes[s.Name] = append(o.changes[s.Name], float64(int(minute+0.5)))
				}
				var last string
				for _, w := range members.of(s.Name) {
					if text := fmt.Sprint(w.Admit, w.Reason, w.Signal.Window); text != last {
						last = text
						o.told[s.Name] = append(o.told[s.Name], text)
					}
				}
			}
			stop()
			windows, err := files.Load()
			if err != nil {
				t.Fatal(err)
			}
			verdicts, err := files.LoadSanity()
			if err != nil {
				t.Fatal(err)
			}
			plan, _, err := files.LoadPlan()
			if err != nil {
				t.Fatal(err)
			}
			for name, s := range windows { // those moments are of decisions, not of points
				s.Since, s.Changed, s.Left = s.Since.Round(time.Minute), s.Changed.Round(time.Minute), s.Left.Round(time.Minute)
				windows[name] = s
			}
			raw, err := json.Marshal([]any{windows, verdicts, plan})
			if err != nil {
				t.Fatal(err)
			}
			o.memory = string(raw)
		})
		return o
	}
	through := live(t, 0)
	if len(through.changes["a"]) < 2 || len(through.changes["b"]) < 3 || len(through.changes["z"]) < 2 || len(through.changes["o"]) != 2 {
		t.Fatalf("too little happens to be a test: %v", through.changes)
	}
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonCooldown, v1alpha1.ReasonOverride} {
		if !slices.ContainsFunc(slices.Concat(through.told["a"], through.told["b"], through.told["z"], through.told["o"]),
			func(s string) bool { return strings.Contains(s, string(reason)) }) {
			t.Errorf("nothing was told for %s: %v", reason, through.told)
		}
	}
	for _, every := range []int{3, 7, 20} {
		again := live(t, every)
		if !reflect.DeepEqual(again.changes, through.changes) {
			t.Errorf("restarts every %d minutes: changes at %v, want %v", every, again.changes, through.changes)
		}
		if !reflect.DeepEqual(again.told, through.told) {
			t.Errorf("restarts every %d minutes: told %v, want %v", every, again.told, through.told)
		}
		if again.memory != through.memory {
			t.Errorf("restarts every %d minutes: remembers\n%s\nwant\n%s", every, again.memory, through.memory)
		}
	}
}
