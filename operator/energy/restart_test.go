package energy

import (
	"slices"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// day goes through all of it: two points below to enter, two above to leave, a
// minimum on that ends amid points above.
var day = []float64{200, 80, 80, 200, 200, 200, 200, 200, 200, 200, 90, 200, 90, 90, 90}

// decisions of a site point by point; kills say after which points the engine is
// killed and another one begins.
func decisions(t *testing.T, kills ...int) (admitted []bool, reasons []v1alpha1.Reason) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": day})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) {
		s.Energy.EnterConfirmations, s.Energy.LeaveConfirmations, s.Energy.MinimumOnSeconds = 2, 2, 1950 // ends amid two decisions
	}, "a")
	l := r.start()
	l.ensure(f, sites)
	for i := range day {
		e := l.sees(f, "a")
		if slices.Contains(kills, i) {
			r.kept(f) // what is known for longer than the pace of writes is written
			l.kill()
			l = r.start()
			l.ensure(f, sites)
			e = l.sees(f, "a")
		}
		admitted, reasons = append(admitted, e.Admit), append(reasons, e.Reason)
		r.next()
	}
	return admitted, reasons
}

// kept waits until the state of the moment's point is written.
func (r *rig) kept(f *v1alpha1.Federation) {
	r.t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		c := newCabinet(r.client, r.client, f, "", nil)
		for _, m := range r.maps(f) {
			for _, v := range c.unpack(&m) {
				if containsPoint(v, r.clock.Now().Truncate(5*time.Minute)) {
					return
				}
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the state is never written")
		}
	}
}

func TestAKillInTheMiddleChangesNoDecision(t *testing.T) {
	want, why := decisions(t)
	if !slices.Contains(want, true) || !slices.Contains(why, v1alpha1.ReasonMinimumOn) || !slices.Contains(why, v1alpha1.ReasonConfirming) {
		t.Fatalf("the day does not go through it all: %v %v", want, why)
	}
	for name, kills := range map[string][]int{
		"between the confirmations to enter": {1},
		"when it has just come in":           {2},
		"in the minimum on":                  {4, 6},
		"when it has just gone out":          {9},
		"after each point":                   {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
	} {
		t.Run(name, func(t *testing.T) {
			got, reasons := decisions(t, kills...)
			if !slices.Equal(got, want) {
				t.Errorf("in %v %v,\nwant %v %v", got, reasons, want, why)
			}
		})
	}
}

func TestALabelPutByAPersonEndsNothing(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": day})
	f, sites := r.federation("f", nil, "a")
	l := r.start()
	l.ensure(f, sites)
	l.sees(f, "a")
	r.kept(f)
	m := r.maps(f)[0]
	m.Labels["mine"] = "yes"
	if err := r.client.Update(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	r.next()
	l.sees(f, "a")
	r.kept(f)
	if m := r.maps(f)[0]; m.Labels["mine"] != "yes" {
		t.Errorf("labels %v", m.Labels)
	}
	if err := r.client.Delete(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	r.next()
	l.sees(f, "a")
	r.kept(f) // made anew
	if err := l.end(); err != nil {
		t.Error(err)
	}
}

func TestAFederationOfTheSameNameStartsAnew(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": day})
	f, sites := r.federation("f", nil, "a")
	l := r.start()
	l.ensure(f, sites)
	l.sees(f, "a")
	r.kept(f)
	before := r.maps(f)[0].UID
	if err := r.client.Delete(t.Context(), f); err != nil { // there is no garbage collector here
		t.Fatal(err)
	}
	again, sites := r.federation("f", nil, "a")
	l.ensure(again, sites)
	l.sees(again, "a")
	r.kept(again)
	m := r.maps(again)
	if len(m) != 1 || m[0].UID == before || m[0].OwnerReferences[0].UID != again.UID {
		t.Errorf("%+v", m)
	}
}

func TestASiteComesInOnlyWhenWhatLedToItIsKept(t *testing.T) {
	r := newRig(t)
	r.every = time.Hour // nothing is written in the background
	r.trace("t.csv", map[string][]float64{"a": {200, 80, 80, 80}})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, "a")
	l := r.start()
	l.ensure(f, sites)
	l.sees(f, "a")
	l.line.cut.Store(true)
	r.next()
	for deadline := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) { // the director has decided and cannot say it
		x, err := l.federation(key(f)).explain("a")
		if err != nil {
			t.Fatal(err)
		}
		if x.Admit && x.MembershipError != "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v", x.Facts())
		}
	}
	if e, _ := l.Wish(key(f), "a"); e.Admit {
		t.Errorf("in, and the next leader would not know why: %+v", e)
	}
	l.line.cut.Store(false)
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	r.kept(f)
}
