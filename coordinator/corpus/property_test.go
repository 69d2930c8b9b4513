package corpus

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is a federation around a ledger as the simplest thing that can be right:
// who has committed which sample, by version.
type world struct {
	cfg      Config
	ledger   *Ledger
	versions []version
	accepted map[string]Use
}

// version is a commit in effect; a rollback takes the ones after it away.
type version struct {
	at   Position
	uses []Use
}

func (w *world) now() Position { return w.versions[len(w.versions)-1].at }

// counted is how often each sample of a pass is in the commits in effect.
func (w *world) counted() map[uint64][]int {
	out := map[uint64][]int{}
	for _, v := range w.versions {
		for _, u := range v.uses {
			for _, r := range u.Ranges {
				if out[r.Pass] == nil {
					out[r.Pass] = make([]int, w.cfg.Samples)
				}
				for i := r.Begin; i < r.End; i++ {
					out[r.Pass][i]++
				}
			}
		}
	}
	return out
}

// check holds the ledger against the commits.
func (w *world) check(t *rapid.T) {
	counted := w.counted()
	at := w.now()
	for pass, samples := range counted {
		if pass > at.Pass+1 || w.cfg.Passes > 0 && pass >= w.cfg.Passes {
			t.Fatalf("pass %d was begun while %d is open of %d", pass, at.Pass, w.cfg.Passes)
		}
		for i, n := range samples {
			if n > 1 || n == 0 && pass < at.Pass {
				t.Fatalf("sample %d of pass %d counts %d times at %+v", i, pass, n, at)
			}
		}
	}
	// What the position says is consumed is what was committed.
	var want Ranges
	for _, pass := range []uint64{at.Pass, at.Pass + 1} {
		for i, n := range counted[pass] {
			switch k := len(want) - 1; {
			case n == 0:
			case k >= 0 && want[k].Pass == pass && want[k].End == uint64(i):
				want[k].End++
			default:
				want = append(want, Range{pass, uint64(i), uint64(i) + 1})
			}
		}
	}
	if !slices.Equal(at.Consumed, want) {
		t.Fatalf("%+v, but committed is %v", at, want)
	}
	st := w.ledger.Status()
	if st.Pass == at.Pass {
		n := slices.DeleteFunc(slices.Clone(at.Consumed), func(r Range) bool { return r.Pass != at.Pass }).Size()
		if st.Consumed != n || st.Consumed+st.Leased > st.Samples {
			t.Fatalf("%+v at %+v", st, at)
		}
	}
}

// leases checks that no sample is leased twice or again.
func (w *world) leases(t *rapid.T) {
	seen := map[Range]string{}
	for _, r := range w.now().Consumed {
		for i := r.Begin; i < r.End; i++ {
			seen[Range{r.Pass, i, 0}] = "a commit"
		}
	}
	for member := range w.ledger.leases {
		lease := w.ledger.Leased(member)
		if err := lease.Check(); err != nil || len(lease) > MaxRanges {
			t.Fatalf("lease %v: %v", lease, err)
		}
		for _, r := range lease {
			for i := r.Begin; i < r.End; i++ {
				k := Range{r.Pass, i, 0}
				if seen[k] != "" {
					t.Fatalf("sample %d of pass %d is leased to %s and belongs to %s", i, r.Pass, member, seen[k])
				}
				seen[k] = member
			}
		}
	}
}

// draw is some of a lease: a part from its front or anything of it.
func draw(t *rapid.T, lease Ranges) Ranges {
	if rapid.Bool().Draw(t, "in order") {
		n := rapid.Uint64Range(1, lease.Size()).Draw(t, "used")
		var out Ranges
		for _, r := range lease {
			if k := min(n, r.End-r.Begin); k > 0 {
				out = append(out, Range{r.Pass, r.Begin, r.Begin + k})
				n -= k
			}
		}
		return out
	}
	var out Ranges
	for _, r := range lease {
		for i := r.Begin; i < r.End; i++ {
			if rapid.IntRange(0, 3).Draw(t, "hit") == 0 {
				out = append(out, Range{r.Pass, i, i + 1})
			}
		}
	}
	if len(out) == 0 {
		out = Ranges{{lease[0].Pass, lease[0].Begin, lease[0].Begin + 1}}
	}
	return out
}

func (w *world) grant(t *rapid.T, members []string) {
	var claims []Claim
	for _, m := range members {
		if rapid.Bool().Draw(t, "grant "+m) {
			claims = append(claims, Claim{Member: m, Steps: rapid.Uint64Range(0, 9).Draw(t, "steps"), Seconds: rapid.Float64Range(0, 100).Draw(t, "seconds")})
		}
	}
	w.ledger.Lease(claims)
	w.leases(t)
}

func (w *world) update(t *rapid.T, member string) {
	lease := w.ledger.Leased(member)
	if len(lease) == 0 {
		if err := w.ledger.Check(member, Ranges{{w.now().Pass, 0, 1}}); err == nil {
			t.Fatalf("%s may use a sample without a lease", member)
		}
		return
	}
	if _, twice := w.accepted[member]; twice {
		return
	}
	used := draw(t, lease)
	if err := w.ledger.Check(member, used); err != nil {
		t.Fatalf("%v of %v: %v", used, lease, err)
	}
	// Never what another holds, was consumed, or is of a pass that is not open.
	if last := lease[len(lease)-1]; w.ledger.Check(member, Ranges{{last.Pass, last.Begin, last.End + 1}}) == nil ||
		w.ledger.Check(member, Ranges{{last.Pass + 2, last.Begin, last.End}}) == nil {
		t.Fatalf("more than %v may be used", lease)
	}
	w.accepted[member] = Use{Member: member, Ranges: used, Steps: rapid.Uint64Range(0, 5).Draw(t, "did"), Seconds: rapid.Float64Range(0, 5).Draw(t, "took")}
}

func (w *world) commit(t *rapid.T) {
	var uses []Use
	for _, m := range slices.Sorted(maps.Keys(w.accepted)) {
		uses = append(uses, w.accepted[m])
	}
	at := w.ledger.After(uses)
	if err := w.ledger.Settle(at, uses); err != nil {
		t.Fatal(err)
	}
	w.versions = append(w.versions, version{at, uses})
	clear(w.accepted)
}

// restart is what a killed coordinator knows: the newest manifest.
func (w *world) restart(t *rapid.T) {
	text, err := w.now().Consumed.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	at := w.now()
	if err := at.Consumed.UnmarshalText(text); err != nil {
		t.Fatal(err)
	}
	if w.ledger, err = New(w.cfg, at); err != nil {
		t.Fatal(err)
	}
	clear(w.accepted)
}

// TestEverySampleCountsOncePerPass drives a ledger through random rounds with
// losses, refusals, void rounds, restarts and rollbacks.
func TestEverySampleCountsOncePerPass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{cfg: Config{
			Samples: rapid.Uint64Range(1, 120).Draw(t, "samples"),
			Lease:   rapid.Uint64Range(0, 40).Draw(t, "lease"),
			Passes:  rapid.Uint64Range(0, 4).Draw(t, "passes"),
		}, versions: []version{{}}, accepted: map[string]Use{}}
		w.restart(t)
		var members []string
		for i := range rapid.IntRange(1, 5).Draw(t, "members") {
			members = append(members, fmt.Sprint("m", i))
		}
		member := rapid.SampledFrom(members)
		t.Repeat(map[string]func(*rapid.T){
			"grant":  func(t *rapid.T) { w.grant(t, members) },
			"update": func(t *rapid.T) { w.update(t, member.Draw(t, "member")) },
			"commit": w.commit,
			"void": func(*rapid.T) {
				w.ledger.Void()
				clear(w.accepted)
			},
			// Its update is refused, it declines, or its drain is over.
			"return": func(t *rapid.T) {
				if m := member.Draw(t, "member"); w.accepted[m].Member == "" {
					w.ledger.Return(m)
				}
			},
			// Accepted, and excluded before the merge.
			"exclude": func(t *rapid.T) { delete(w.accepted, member.Draw(t, "member")) },
			"restart": w.restart,
			"rollback": func(t *rapid.T) {
				w.versions = w.versions[:rapid.IntRange(1, len(w.versions)).Draw(t, "to")]
				clear(w.accepted)
				if err := w.ledger.Settle(w.now(), nil); err != nil {
					t.Fatal(err)
				}
			},
			"": w.check,
		})
		w.finish(t, members)
	})
}

// finish works on, with the first member never using what it gets, until all
// passes are done, or two more of an endless run.
func (w *world) finish(t *rapid.T, members []string) {
	w.ledger.Void()
	clear(w.accepted)
	until := w.now().Pass + 2
	for n := 0; !w.ledger.Done() && w.now().Pass < until; n++ {
		if n > 10_000 {
			t.Fatalf("pass %d does not end: %+v", w.now().Pass, w.now())
		}
		var claims []Claim
		for _, m := range members {
			claims = append(claims, Claim{Member: m, Steps: 10})
		}
		w.ledger.Lease(claims)
		w.leases(t)
		for _, m := range members[min(1, len(members)-1):] {
			w.update(t, m)
		}
		if len(w.accepted) == 0 {
			w.ledger.Void()
			continue
		}
		w.commit(t)
		w.check(t)
	}
	if w.ledger.Done() {
		for pass := range w.cfg.Passes {
			if slices.ContainsFunc(w.counted()[pass], func(n int) bool { return n != 1 }) || w.counted()[pass] == nil {
				t.Fatalf("pass %d is over: %v", pass, w.counted()[pass])
			}
		}
	}
}
