package churn

import (
	"bytes"
	"fmt"
	stdnet "net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/operator/dashboards/promtest"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/synthetic"
)

// The regions of the generated traces that stand for the sites' grids: their
// windows overlap, so both sites train alone and together.
var regions = map[string]string{quebec: "es-centre", atlanta: "se-south"}

// lead of the clock before the first point of the traces: signals are missing, and
// the coordinator starts.
const lead = 8 * time.Second

// A window is used if there is time for that: for the machines, the agents and
// their sessions, and for one round after. The policy's provisioningSeconds and
// round are shorter; the rest is for a machine that is busy with other tests.
const (
	comes    = 10 * time.Second
	oneRound = 4 * time.Second
)

// A generated day of signals moves both sites: every window is used and nothing
// else, every drain ends by its deadline, no update is lost and all replicas are
// the coordinator's. In the longest window the operator is killed and started
// again, and no site notices.
func TestADayOfSignals(t *testing.T) {
	day, err := synthetic.Generate(synthetic.Config{Seed: *seed, Sites: 6})
	if err != nil {
		t.Fatal(err)
	}
	traces := t.TempDir()
	writeTrace(t, filepath.Join(traces, "marginal.csv"), day.Marginal)
	writeTrace(t, filepath.Join(traces, "average.csv"), day.Average)
	// Real time when the first point is reached, with the start of everything before.
	c := &clock{start: synthetic.Start.Add(-time.Duration(float64(lead) * *speed)), speed: *speed, anchor: time.Now()}
	r := newRig(t, setup{traces: traces, clock: c, metrics: freeAddress(t)})
	panels := r.watchPanels()
	t.Logf("seed %d, %g virtual seconds a second; windows %v", *seed, *speed, windows(day))

	r.alive(c.when(middle(day)))
	r.killOperator()
	r.alive(c.when(synthetic.Start.Add((synthetic.Points - 1) * synthetic.Step)))
	for _, site := range []string{quebec, atlanta} {
		r.untilPhase(site, v1alpha1.SiteIdle)
	}
	last := r.status()
	panels()
	r.watch.pause() // what follows is no part of the day
	r.remove()

	manifests := r.checkCommits()
	t.Logf("timeline; a column is %s\n%s", column, r.timeline(c, day, manifests))
	if last == nil {
		t.Error("the coordinator did not answer at the end of the day")
	} else {
		t.Logf("%d rounds committed, %d void, %d samples", last.GetRoundsCommitted(), last.GetRoundsVoid(), last.GetCommittedSamples())
	}
	r.checkWindows(c, day, manifests)
	r.checkDrains()
	r.checkUpdates(manifests, 0)
	r.checkReplicas(manifests)
	r.checkEndings()
}

// watchPanels has a real Prometheus scrape operator and coordinator; what it
// returns asks every query of the dashboards, none of which may be empty.
func (r *rig) watchPanels() (ask func()) {
	r.t.Helper()
	if why := promtest.Missing(); why != "" {
		r.t.Log(why)
		return func() {}
	}
	coordinator := net(testenv.PodAddress(r.ns, resources.CoordinatorName(federationName)+"-0"), resources.MetricsPort)
	server, began := promtest.Start(r.t, r.metrics, coordinator), time.Now()
	return func() {
		r.t.Helper()
		empty, err := server.Empty(began, time.Now(), nil)
		if err != nil {
			r.t.Error(err)
		}
		for _, q := range empty {
			r.t.Errorf("no value: %s", q)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// middle of the longest window.
func middle(day synthetic.Traces) time.Time {
	var longest synthetic.Window
	for _, all := range windows(day) {
		for _, w := range all {
			if w.Length > longest.Length {
				longest = w
			}
		}
	}
	return synthetic.Start.Add(longest.From + longest.Length/2)
}

// alive waits until a time, as long as the operator runs.
func (r *rig) alive(until time.Time) {
	r.t.Helper()
	select {
	case <-r.operator.Done():
		r.t.Fatalf("the operator ended with code %d\n%s", r.operator.ExitCode(), r.operator.Tail(5000))
	case <-time.After(time.Until(until)):
	}
}

// writeTrace writes a trace whose columns have the names of the sites.
func writeTrace(t *testing.T, path string, trace *replay.Trace) {
	t.Helper()
	var b bytes.Buffer
	if err := trace.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for site, region := range regions {
		text = strings.Replace(text, region, site, 1)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// windows of each site, as the generator made them.
func windows(day synthetic.Traces) map[string][]synthetic.Window {
	out := map[string][]synthetic.Window{}
	for site, region := range regions {
		i := slices.IndexFunc(day.Sites, func(r synthetic.Region) bool { return r.Name == region })
		out[site] = day.Sites[i].Windows
	}
	return out
}

// trained says whether a commit between two virtual times has an update of a site.
func trained(c *clock, manifests []checkpoint.Manifest, site string, from, to time.Time) bool {
	return slices.ContainsFunc(manifests, func(m checkpoint.Manifest) bool {
		at := c.at(time.UnixMilli(m.UnixMilli))
		return !at.Before(from) && at.Before(to) && slices.ContainsFunc(m.Members, func(x checkpoint.ManifestMember) bool { return x.Site == site })
	})
}

// checkWindows: each window that is long enough has a committed round of its site,
// and no round lies outside of all windows.
func (r *rig) checkWindows(c *clock, day synthetic.Traces, manifests []checkpoint.Manifest) {
	r.t.Helper()
	virtual := func(d time.Duration) time.Duration { return time.Duration(float64(d) * c.speed) }
	// The first point above the threshold closes a window; then the drain's grace
	// and the commit of what was brought in it.
	after := synthetic.Step + virtual(time.Duration(r.federation.Spec.Drain.GraceSeconds)*time.Second+oneRound)
	long := 0
	for site, all := range windows(day) {
		outside, required := synthetic.Start.Add(-virtual(lead)), 0
		for _, w := range all {
			// Two points below the threshold open it; the second is one step later.
			from, to := synthetic.Start.Add(w.From+synthetic.Step), synthetic.Start.Add(w.From+w.Length)
			used, must := trained(c, manifests, site, from, to), to.Sub(from) > virtual(comes+oneRound)
			if must {
				required++
			}
			if must && !used {
				r.t.Errorf("%s: nothing was committed in its window from %s to %s", site, from.Format("15:04"), to.Format("15:04"))
			}
			r.t.Logf("window of %-8s %s to %s (%4.1f s): used %t, required %t", site, from.Format("15:04"), to.Format("15:04"), to.Sub(from).Seconds()/c.speed, used, must)
			if trained(c, manifests, site, outside, from) {
				r.t.Errorf("%s trained between %s and %s, outside of its windows", site, outside.Format("15:04"), from.Format("15:04"))
			}
			outside = to.Add(after)
		}
		if drains := len(r.drains(site)); drains < required || drains > len(all) {
			r.t.Errorf("%s drained %d times in %d windows, of which %d had to be used", site, drains, len(all), required)
		}
		long += required
	}
	if long == 0 {
		r.t.Error("no window is long enough to be used: take another seed or a lower speed")
	}
}

// drains of a site.
func (r *rig) drains(site string) []span {
	return slices.DeleteFunc(r.watch.spans(site), func(s span) bool { return s.phase != v1alpha1.SiteDraining })
}

// checkDrains: who leaves is out by the deadline that its status shows.
func (r *rig) checkDrains() {
	r.t.Helper()
	n := 0
	for _, site := range []string{quebec, atlanta} {
		for _, s := range r.drains(site) {
			n++
			by := s.last.site.Status.DrainDeadline
			switch {
			case by == nil:
				r.t.Errorf("%s drains from %s without a deadline", site, s.from.Format("15:04:05"))
			case s.to.IsZero():
				r.t.Errorf("%s drains from %s and never ends", site, s.from.Format("15:04:05"))
			default:
				// Status times are whole seconds, and the end is seen after it was written.
				if late := s.to.Sub(by.Add(2 * time.Second)); late > 0 {
					r.t.Errorf("%s drained until %s, by %s at the latest", site, s.to.Format("15:04:05.000"), by.Format("15:04:05"))
				}
				r.t.Logf("%s drained in %.1f s of %.1f", site, s.to.Sub(s.from).Seconds(), by.Sub(s.from).Seconds())
			}
		}
	}
	if n == 0 {
		r.t.Error("no site ever drained")
	}
}

// column is a character of the timeline.
const column = 15 * time.Minute

// letters of the phases in the timeline.
var letters = map[v1alpha1.SitePhase]byte{
	"": ' ', v1alpha1.SiteIdle: '.', v1alpha1.SiteProvisioning: 'p', v1alpha1.SiteJoining: 'j', v1alpha1.SiteActive: 'A',
	v1alpha1.SiteDraining: 'd', v1alpha1.SiteLost: 'L', v1alpha1.SiteBlocked: 'B', v1alpha1.SiteFailed: 'F',
}

// timeline is a table over the day: of each site its windows, the phase that it
// was in at the end of the column (or one that began and ended in it), and the
// commits with its work.
func (r *rig) timeline(c *clock, day synthetic.Traces, manifests []checkpoint.Manifest) string {
	var b strings.Builder
	columns := int((synthetic.Points-1)*synthetic.Step/column) + 1
	start := func(i int) time.Time { return synthetic.Start.Add(time.Duration(i) * column) }
	fmt.Fprintf(&b, "%-18s", "hour")
	for i := 0; i < columns; i += 4 {
		fmt.Fprintf(&b, "%-4s", start(i).Format("15"))
	}
	for _, site := range []string{quebec, atlanta} {
		open := bytes.Repeat([]byte{' '}, columns)
		for _, w := range windows(day)[site] {
			for i := range open {
				if start(i+1).After(synthetic.Start.Add(w.From)) && start(i).Before(synthetic.Start.Add(w.From+w.Length)) {
					open[i] = '='
				}
			}
		}
		phases, commits := bytes.Repeat([]byte{' '}, columns), bytes.Repeat([]byte{' '}, columns)
		spans := r.watch.spans(site)
		for i := range phases {
			for _, s := range spans {
				if c.at(s.from).Before(start(i+1)) && (s.to.IsZero() || c.at(s.to).After(start(i))) {
					phases[i] = letters[s.phase]
				}
			}
			n := 0
			for _, m := range manifests {
				if trained(c, []checkpoint.Manifest{m}, site, start(i), start(i+1)) {
					n++
				}
			}
			if n > 0 {
				commits[i] = "0123456789+"[min(n, 10)]
			}
		}
		fmt.Fprintf(&b, "\n%-8s window   %s\n%-8s phase    %s\n%-8s commits  %s", site, open, "", phases, "", commits)
	}
	b.WriteString("\n= open  . Idle  p Provisioning  j Joining  A Active  d Draining  L Lost  B Blocked  F Failed\n")
	return b.String()
}
