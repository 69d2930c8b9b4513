package corpus

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// front is the first n samples of a lease.
func front(lease Ranges, n uint64) Ranges {
	var out Ranges
	for _, r := range lease {
		if k := min(n, r.End-r.Begin); k > 0 {
			out = append(out, Range{r.Pass, r.Begin, r.Begin + k})
			n -= k
		}
	}
	return out
}

// use commits what members used of their leases.
func use(t testing.TB, l *Ledger, uses ...Use) Position {
	t.Helper()
	for _, u := range uses {
		if err := l.Check(u.Member, u.Ranges); err != nil {
			t.Fatal(err)
		}
	}
	at := l.After(uses)
	if err := l.Settle(at, uses); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestLeasesFollowWhatMembersUsed(t *testing.T) {
	l := must(New(Config{Samples: 1_000_000, Lease: 100}, Position{}))(t)
	l.Lease([]Claim{{Member: "b/fast", Steps: 50}, {Member: "a/slow", Steps: 50}})
	if a, b := l.Leased("a/slow").String(), l.Leased("b/fast").String(); a != "0:0-100" || b != "0:100-200" {
		t.Fatalf("first leases %s and %s", a, b)
	}
	at := use(t, l,
		Use{Member: "a/slow", Ranges: front(l.Leased("a/slow"), 40), Steps: 10, Seconds: 8},
		Use{Member: "b/fast", Ranges: l.Leased("b/fast"), Steps: 5, Seconds: 0.5})
	if got := at.Consumed.String(); got != "0:0-40,100-200" {
		t.Fatalf("consumed %s", got)
	}
	// 20 steps of 4 and of 20 samples, and a quarter more; or 10 s of 5 and of 200.
	for _, c := range []struct {
		claim Claim
		want  string
	}{
		{Claim{Member: "a/slow", Steps: 40}, "0:40-100,200-340"},
		{Claim{Member: "b/fast", Steps: 20}, "0:340-840"},
	} {
		l.Lease([]Claim{c.claim})
		if got := l.Leased(c.claim.Member).String(); got != c.want {
			t.Errorf("%+v is leased %s, want %s", c.claim, got, c.want)
		}
	}
	l.Void()
	l.Lease([]Claim{{Member: "b/fast", Seconds: 10}, {Member: "c/new", Seconds: 10}})
	if got := l.Leased("b/fast").Size(); got != 2500 {
		t.Errorf("10 s of 200 samples lease %d", got)
	}
	if got := l.Leased("c/new").Size(); got != 100 {
		t.Errorf("an unknown member is leased %d", got)
	}
	before := l.Leased("b/fast").String()
	l.Lease([]Claim{{Member: "b/fast", Steps: 1000}})
	if got := l.Leased("b/fast").String(); got != before {
		t.Errorf("a second grant of the round changed the lease from %s to %s", before, got)
	}
}

func TestWhatIsConsumedStaysNearlyOneRange(t *testing.T) {
	const members, rounds = 8, 300
	r := rand.New(rand.NewPCG(1, 2))
	l := must(New(Config{Samples: 1e9, Lease: 1000}, Position{}))(t)
	dry := 0
	for round := range rounds {
		var claims []Claim
		for i := range members {
			claims = append(claims, Claim{Member: fmt.Sprint("m", i), Steps: 100})
		}
		l.Lease(claims)
		var uses []Use
		for i, c := range claims {
			lease := l.Leased(c.Member)
			if r.IntN(20) == 0 {
				continue // lost
			}
			// Up to a fifth faster or slower than its mean.
			n := uint64(float64(1000*(i+1)) * (0.8 + 0.4*r.Float64()))
			if n > lease.Size() {
				dry++
				n = lease.Size()
			}
			uses = append(uses, Use{Member: c.Member, Ranges: front(lease, n), Steps: 100, Seconds: 10})
		}
		at := use(t, l, uses...)
		if n := len(at.Consumed); n > 2*members {
			t.Fatalf("round %d: consumed is %d ranges: %s", round, n, at.Consumed)
		}
	}
	if dry > rounds*members/20 {
		t.Errorf("%d of %d leases ran dry", dry, rounds*members)
	}
}

func TestTheLastSamplesGoRound(t *testing.T) {
	l := must(New(Config{Samples: 1, Lease: 100, Passes: 1}, Position{}))(t)
	both := []Claim{{Member: "a"}, {Member: "b"}}
	for _, holder := range []string{"a", "b", "a", "b"} {
		l.Lease(both)
		if l.Leased(holder) == nil {
			t.Fatalf("%s does not hold the only sample", holder)
		}
		l.Void()
	}
	l.Lease(both)
	l.Return("a")
	l.Lease([]Claim{{Member: "a"}, {Member: "c"}})
	if l.Leased("a") != nil || l.Leased("c").String() != "0:0-1" {
		t.Errorf("after its return a holds %s and c %s", l.Leased("a"), l.Leased("c"))
	}
	if st := l.Status(); st != (Status{Samples: 1, Leased: 1}) {
		t.Errorf("%+v", st)
	}
	use(t, l, Use{Member: "c", Ranges: l.Leased("c")})
	if st := l.Status(); !l.Done() || st != (Status{Samples: 1, Consumed: 1}) {
		t.Errorf("%+v", st)
	}
	l.Lease(both)
	if l.Leased("a") != nil {
		t.Error("more is leased than there is")
	}
}

func TestTheNextPassBeginsWhileTheOldOneIsOut(t *testing.T) {
	l := must(New(Config{Samples: 100, Lease: 60}, Position{}))(t)
	l.Lease([]Claim{{Member: "a"}})
	l.Lease([]Claim{{Member: "b"}})
	l.Lease([]Claim{{Member: "c"}})
	l.Lease([]Claim{{Member: "d"}})
	for member, want := range map[string]string{"a": "0:0-60", "b": "0:60-100 1:0-20", "c": "1:20-80", "d": "1:80-100"} {
		if got := l.Leased(member).String(); got != want {
			t.Errorf("%s holds %s, want %s", member, got, want)
		}
	}
	at := use(t, l, Use{Member: "b", Ranges: l.Leased("b")}, Use{Member: "c", Ranges: l.Leased("c")}, Use{Member: "d", Ranges: l.Leased("d")})
	if at.Pass != 0 || at.Consumed.String() != "0:60-100 1:0-100" {
		t.Fatalf("%+v", at)
	}
	if l.Lease([]Claim{{Member: "b"}}); l.Leased("b").String() != "0:0-60" {
		t.Fatalf("b holds %s", l.Leased("b"))
	}
	if at = use(t, l, Use{Member: "b", Ranges: l.Leased("b")}); at.Pass != 2 || at.Consumed != nil {
		t.Errorf("both passes are over: %+v", at)
	}
}

func TestUpdatesThatUsedOtherSamplesAreRefusedWithTheCure(t *testing.T) {
	l := must(New(Config{Samples: 100_000, Lease: 10_000}, Position{Samples: 100_000, Pass: 2}))(t)
	l.Lease([]Claim{{Member: "a"}, {Member: "b"}})
	for _, c := range []struct {
		member string
		used   Ranges
		want   string
	}{
		{"a", nil, "round.data"},
		{"nobody", Ranges{{2, 0, 1}}, "holds no lease"},
		{"a", Ranges{{2, 0, 10_001}}, "2:0-10001 is not leased to a"},
		{"b", Ranges{{2, 0, 1}}, "it holds 2:10000-20000"},
		{"a", Ranges{{1, 0, 1}}, "1:0-1 is not leased"},
		{"a", Ranges{{4, 0, 1}}, "4:0-1 is not leased"},
		{"a", Ranges{{1<<64 - 1, 0, 1}}, "not leased"},
		{"a", Ranges{{2, 0, 1<<64 - 1}}, "not leased"},
		{"a", Ranges{{2, 5, 5}}, "empty"},
		{"a", Ranges{{2, 5, 8}, {2, 7, 9}}, "do not overlap"},
		{"a", Ranges{{2, 5, 8}, {2, 1, 2}}, "do not overlap"},
		{"a", every(2, 0, 2*(MaxUsed+1)), "in their order"},
	} {
		if err := l.Check(c.member, c.used); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s used %s: %v, want %q", c.member, short(c.used), err, c.want)
		}
	}
	for _, used := range []Ranges{{{2, 0, 10_000}}, {{2, 0, 5}, {2, 5, 6}}, {{2, 9_999, 10_000}}, every(2, 0, 2*MaxUsed)} {
		if err := l.Check("a", used); err != nil {
			t.Errorf("%s: %v", short(used), err)
		}
	}
}

// every second sample from begin to end.
func every(pass, begin, end uint64) (out Ranges) {
	for i := begin; i < end; i += 2 {
		out = append(out, Range{pass, i, i + 1})
	}
	return out
}

func TestMembersCannotBreakTheLedgerIntoCrumbs(t *testing.T) {
	l := must(New(Config{Samples: 1_000_000, Lease: 10_000}, Position{}))(t)
	refused := 0
	for range 20 {
		l.Lease([]Claim{{Member: "crumbs", Seconds: 1}, {Member: "order"}})
		lease := l.Leased("crumbs")
		// From the back, so that gaps pile up in front.
		last := lease[len(lease)-1]
		crumbs := every(last.Pass, last.Begin, last.End)
		uses := []Use{{Member: "order", Ranges: front(l.Leased("order"), 10)}}
		if u := (Use{Member: "crumbs", Ranges: crumbs[:min(len(crumbs), MaxUsed)]}); l.Check("crumbs", u.Ranges) == nil {
			uses = append(uses, u)
		} else {
			refused++
		}
		if at := use(t, l, uses...); len(at.Consumed) > maxPieces+2 {
			t.Fatalf("%d ranges", len(at.Consumed))
		}
	}
	if refused == 0 {
		t.Log("gaps healed faster than they were made")
	}
}

func TestACorpusMayGrowAndNotShrink(t *testing.T) {
	at := Position{Samples: 100, Pass: 1, Consumed: Ranges{{1, 0, 50}}}
	l := must(New(Config{Samples: 200, Lease: 500, Passes: 2}, at))(t)
	if l.Lease([]Claim{{Member: "a"}}); l.Leased("a").String() != "1:50-200" {
		t.Errorf("a holds %s", l.Leased("a"))
	}
	for _, c := range []struct {
		cfg  Config
		at   Position
		want string
	}{
		{Config{Samples: 99}, at, "cannot shrink to 99"},
		{Config{}, Position{}, "1 to 1e+15"},
		{Config{Samples: 2e15}, Position{}, "1 to 1e+15"},
		{Config{Samples: 100}, Position{Samples: 100, Pass: 1, Consumed: Ranges{{0, 0, 1}}}, "neither pass 1"},
		{Config{Samples: 100}, Position{Samples: 100, Pass: 1, Consumed: Ranges{{3, 0, 1}}}, "neither pass 1"},
		{Config{Samples: 100}, Position{Samples: 100, Consumed: Ranges{{0, 0, 101}}}, "behind the 100"},
	} {
		if _, err := New(c.cfg, c.at); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v at %+v: %v", c.cfg, c.at, err)
		}
	}
	// Passes may be fewer than what was done.
	if l := must(New(Config{Samples: 100, Passes: 1}, at))(t); !l.Done() || l.Status() != (Status{Samples: 100, Consumed: 100}) {
		t.Errorf("%+v", l.Status())
	}
}

func TestPacesOfMembersUnderEverNewNamesAreBounded(t *testing.T) {
	l := must(New(Config{Samples: 1e9, Lease: 1}, Position{}))(t)
	for i := range 2 * maxPaces {
		name := fmt.Sprint("node-", i)
		l.Lease([]Claim{{Member: name}})
		use(t, l, Use{Member: name, Ranges: l.Leased(name), Steps: 1})
	}
	if len(l.pace) > maxPaces || len(l.idle) > 1 {
		t.Errorf("%d paces, %d idle", len(l.pace), len(l.idle))
	}
}
