package admission

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestAQuarantineLastsForItsRoundsAndSurvivesItsJSON(t *testing.T) {
	var s State
	s.Norms = run(3, map[string]Measure{"a": {Norm: 1, Steps: 2, Weight: 3}})
	s.Put("a", 10, 2, Breach{v1alpha1.ReasonNormTooLarge, "too large"})
	s.Put("b", 10, 0, Breach{v1alpha1.ReasonNormTooLarge, "too large"})
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseState(b)
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v, %v, want %+v", got, err, s)
	}
	for round, want := range map[uint64]bool{10: true, 11: true, 12: true, 13: false} {
		if q, ok := got.Of("a", round); ok != want || ok && q.Until != 13 {
			t.Errorf("round %d: %v, %+v", round, ok, q)
		}
	}
	// The round of the breach is judged update by update.
	for round, want := range map[uint64]bool{10: false, 11: true, 12: true, 13: false} {
		if _, ok := got.Shut("a", round); ok != want {
			t.Errorf("round %d: shut %v", round, ok)
		}
	}
	if _, ok := got.Of("b", 11); ok {
		t.Error("a quarantine of no rounds")
	}
	if over := got.Expire(12); len(over) != 0 {
		t.Error(over)
	}
	if over := got.Expire(13); !slices.Equal(over, []string{"a"}) || got.Release("a") {
		t.Error(over)
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"norms":[{"round":1,"site":"a","norm":1,"steps":2,"weight":3}],"quarantines":{"a":{"reason":"NormTooLarge","message":"x","until":4}}}`))
	f.Add([]byte(`{"norms":[{"norm":-1}]}`))
	f.Add([]byte(`{"norms":[{"norm":1e999}]}`))
	f.Add([]byte(`{"quarantines":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseState(b)
		if err != nil {
			return
		}
		s.Norms.Judge(2, Measure{Norm: 1, Steps: 1, Weight: 1})
		s.Norms = s.Norms.Merged(1, map[string][]Measure{"a": {{Norm: 1, Steps: 1, Weight: 1}}})
		if len(s.Norms) > history {
			t.Errorf("%d norms", len(s.Norms))
		}
		s.Put("a", 1, 2, Breach{})
		if _, ok := s.Of("a", 2); !ok || !s.Release("a") {
			t.Error("no quarantine")
		}
	})
}

func TestCallsRefillWithTime(t *testing.T) {
	now := time.Unix(1000, 0)
	s := NewSite(Quotas{CallsPerMinute: 60})
	for i := range 60 {
		if _, _, ok := s.Call(now); !ok {
			t.Fatalf("call %d of 60 refused", i+1)
		}
	}
	wait, perMinute, ok := s.Call(now)
	if ok || wait != time.Second || perMinute != 60 {
		t.Fatalf("%v, %s, %d", ok, wait, perMinute)
	}
	if _, _, ok := s.Call(now.Add(wait)); !ok {
		t.Error("refused after the wait")
	}
	if _, _, ok := s.Call(now.Add(-time.Hour)); ok {
		t.Error("a clock that goes back gives calls")
	}
}

// A quota grows with the members that have a session, at once and for the round.
func TestDefaultQuotasFollowTheMembers(t *testing.T) {
	s := NewSite(Quotas{})
	if _, n, _ := s.Call(time.Unix(1, 0)); n != defaultCalls {
		t.Errorf("%d calls without a member", n)
	}
	s.SetMembers(3)
	if _, n, _ := s.Call(time.Unix(1, 0)); n != 3*defaultCalls {
		t.Errorf("%d calls with three", n)
	}
	if quota, ok := s.Receive(1, 100, 10); quota != 120 || !ok {
		t.Errorf("%d bytes, %v", quota, ok)
	}
	s.SetMembers(1) // what they have sent stays within their quota
	if quota, ok := s.Room(1, 20, 10); quota != 120 || !ok {
		t.Errorf("%d bytes, %v", quota, ok)
	}
	if _, ok := s.Room(1, 21, 10); ok {
		t.Error("room beyond the quota")
	}
	if quota, ok := s.Receive(2, 41, 10); quota != 40 || ok {
		t.Errorf("%d bytes in the next round, %v", quota, ok)
	}
	if quota, _ := s.Room(3, 1, 1<<62); quota <= 0 {
		t.Errorf("a quota of %d", quota)
	}
}

// What a working member can come to, by calculation: a session again each round, a
// pull of the commit, a push that breaks ten times, and an offered renewal, in
// rounds of two seconds. It stays far below its calls, and below its bytes however
// often the line breaks, since a push resumes.
func TestAWorkingMemberNeverMeetsTheDefaults(t *testing.T) {
	const members = 256
	s := NewSite(Quotas{})
	s.SetMembers(members)
	now := time.Unix(1, 0)
	for round := uint64(1); round <= 900; round++ {
		for range members {
			for range 1 + 1 + 11 + 1 {
				if _, _, ok := s.Call(now); !ok {
					t.Fatalf("round %d: a call refused", round)
				}
			}
			// Each of ten breaks loses what was under way, at most 16 MiB of 35 MiB.
			size := int64(35 << 20)
			for range 10 {
				if _, ok := s.Receive(round, size/10, size); !ok {
					t.Fatalf("round %d: bytes refused", round)
				}
			}
			if _, ok := s.Receive(round, size, size); !ok {
				t.Fatalf("round %d: bytes refused", round)
			}
		}
		now = now.Add(200 * time.Millisecond) // small models have short rounds
	}
	for _, c := range []Config{{MaxNormFactor: 1}, {MaxNormFactor: -2}, {MinCosine: new(1.5)}, {Quotas: Quotas{Members: -1}}} {
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
	if err := (Config{MaxNormFactor: 5, MinCosine: new(-0.2)}).Validate(); err != nil {
		t.Error(err)
	}
}
