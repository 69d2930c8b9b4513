package timeline

import (
	"encoding/hex"
	"math"
	"slices"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// ProgressEvery is the least virtual time between two Progress entries.
const ProgressEvery = 5 * time.Minute

// CommitSource looks up what the commit log says of a version; false when it
// does not (any more).
type CommitSource func(version uint64) (Commit, bool)

// Commit is one entry of the commit log as far as the timeline needs it.
type Commit struct {
	Round      uint64
	Digest     string
	Members    []Member
	Tokens     uint64 // all committed so far
	Evaluation *Evaluation
	// Time of the commit, virtual; zero when unknown.
	Time time.Time
}

// Differ turns the coordinator's statuses, in order, into entries. A status
// seen late costs nothing: versions in between are asked from Commits.
type Differ struct {
	// Commits is optional; without it a round's members come from the status.
	Commits CommitSource

	prev        *coordinatorv1.FederationStatus
	sites       map[string]Site
	version     uint64
	haveVersion bool
	tokens      uint64
	evaluated   map[uint64]bool
	tokensAt    map[uint64]uint64
	lastProg    time.Time
	traffic     traffic
	roundUp     uint64
	roundDown   uint64
}

// NewDiffer continues where past entries ended; nil starts afresh.
func NewDiffer(past []Entry, commits CommitSource) *Differ {
	d := &Differ{
		Commits: commits, sites: map[string]Site{}, evaluated: map[uint64]bool{}, tokensAt: map[uint64]uint64{},
		traffic: newTraffic(),
	}
	for _, e := range past {
		switch {
		case e.Round != nil && !e.Round.Void:
			d.version, d.haveVersion, d.tokens = e.Round.Version, true, e.Round.TokensTotal
			d.tokensAt[d.version] = d.tokens
		case e.Evaluation != nil:
			d.evaluated[e.Evaluation.Version] = true
		case e.Progress != nil:
			d.roundUp, d.roundDown = e.Progress.BytesUp, e.Progress.BytesDown
			for _, s := range e.Progress.Sites {
				d.traffic.before[s.Name] = moved{s.BytesUp, s.BytesDown}
			}
		}
	}
	return d
}

// Next returns what changed since the status before. now is the virtual time of
// the status: the coordinator runs rounds in real time and signals in virtual.
func (d *Differ) Next(s *coordinatorv1.FederationStatus, now, real time.Time) []Entry {
	now = now.UTC()
	var out []Entry
	add := func(e Entry) {
		if e.Time.IsZero() {
			e.Time = now
		}
		e.Real = real.UTC()
		out = append(out, e)
	}
	if d.prev == nil || d.prev.GetPhase() != s.GetPhase() {
		add(Entry{Kind: KindPhase, Phase: &Phase{Phase: s.GetPhase(), Reason: s.GetReason(), Message: s.GetMessage()}})
	}
	for _, site := range s.GetSites() {
		if e, changed := d.site(site); changed {
			add(Entry{Kind: KindSite, Site: &e})
		}
	}
	d.traffic.see(s)
	for _, e := range d.rounds(s) {
		add(e)
	}
	if ev := s.GetEvaluation(); ev != nil && ev.Loss != nil {
		if e, ok := d.evaluation(&Evaluation{Version: ev.GetVersion(), Tokens: ev.GetSamples(), Loss: ev.GetLoss()}); ok {
			add(e)
		}
	}
	if d.lastProg.IsZero() || now.Sub(d.lastProg) >= ProgressEvery || len(out) > 0 {
		d.lastProg = now
		add(Entry{Kind: KindProgress, Progress: d.progress(s)})
	}
	d.prev = s
	// A commit is older than the status that tells of it.
	slices.SortStableFunc(out, func(a, b Entry) int { return a.Time.Compare(b.Time) })
	return out
}

func (d *Differ) site(s *coordinatorv1.SiteStatus) (Site, bool) {
	e := Site{
		Name: s.GetName(), Phase: s.GetPhase(), Reason: s.GetReason(), Message: s.GetMessage(),
		Training: slices.ContainsFunc(s.GetMembers(), func(m *coordinatorv1.MemberStatus) bool {
			return m.GetConnected() && m.GetState() == coordinatorv1.MemberState_MEMBER_STATE_TRAINING
		}),
	}
	if sig := s.GetSignal(); sig != nil {
		e.Window, e.Unit = sig.GetWindow(), sig.GetUnit()
		if sig.Value != nil && finite(sig.GetValue()) {
			v := sig.GetValue()
			e.Intensity = &v
		}
	}
	old, known := d.sites[e.Name]
	d.sites[e.Name] = e
	return e, !known || old.Phase != e.Phase || old.Training != e.Training || old.Window != e.Window
}

func (d *Differ) rounds(s *coordinatorv1.FederationStatus) []Entry {
	var out []Entry
	if d.prev != nil && s.GetRoundsVoid() > d.prev.GetRoundsVoid() {
		void := s.GetRound().GetLastVoid()
		r := &Round{
			Number: void.GetNumber(), Version: d.version, Void: true, Reason: void.GetReason(), Message: void.GetMessage(),
			TokensTotal: d.tokens,
		}
		r.BytesUp, r.BytesDown = d.sinceRound()
		out = append(out, Entry{Kind: KindRound, Round: r})
	}
	if s.Version == nil {
		return out
	}
	if !d.haveVersion {
		// The first weights are version 0 or, for a log taken up without its
		// timeline, whatever it holds: rounds count from here.
		d.version, d.haveVersion = s.GetVersion(), true
		if d.prev != nil && d.version > 0 && d.prev.Version == nil {
			d.version = 0
		}
		if s.GetVersion() == d.version {
			d.tokens = s.GetCommittedSamples()
		}
		d.tokensAt[d.version] = d.tokens
	}
	if d.prev == nil && s.GetVersion() < d.version {
		d.version = s.GetVersion() // the log lost its torn end
	}
	if s.GetVersion() <= d.version {
		return out
	}
	// The socket's bytes are known per status; versions that came with one
	// share them evenly.
	n := s.GetVersion() - d.version
	up, down := d.sinceRound()
	for v := d.version + 1; v <= s.GetVersion(); v++ {
		out = append(out, d.commit(s, v, up/n, down/n)...)
	}
	return out
}

func (d *Differ) commit(s *coordinatorv1.FederationStatus, v, up, down uint64) []Entry {
	r := &Round{Version: v, Number: v, BytesUp: up, BytesDown: down}
	newest := v == s.GetVersion()
	var ended time.Time
	var evaluation *Evaluation
	c, ok := Commit{}, false
	if d.Commits != nil {
		c, ok = d.Commits(v)
	}
	switch {
	case ok:
		r.Number, r.Digest, r.Members, ended = c.Round, c.Digest, c.Members, c.Time
		r.TokensTotal, evaluation = c.Tokens, c.Evaluation
	case newest:
		if d.prev.GetRound().GetNumber() != 0 {
			r.Number = d.prev.GetRound().GetNumber()
		}
		r.Digest, r.TokensTotal = hex.EncodeToString(s.GetDigest()), s.GetCommittedSamples()
		r.Members = membersOf(d.prev)
	}
	if r.TokensTotal >= d.tokens {
		r.Tokens = r.TokensTotal - d.tokens
		d.tokens = r.TokensTotal
	}
	r.TokensTotal = d.tokens
	r.Loss = meanLoss(r.Members)
	d.version = v
	d.tokensAt[v] = d.tokens
	out := []Entry{{Kind: KindRound, Time: ended, Round: r}}
	if evaluation != nil {
		if e, fresh := d.evaluation(evaluation); fresh {
			out = append(out, e)
		}
	}
	return out
}

// sinceRound is the bytes since it was last called.
func (d *Differ) sinceRound() (up, down uint64) {
	now := d.traffic.total()
	up, down = now.up-d.roundUp, now.down-d.roundDown
	d.roundUp, d.roundDown = now.up, now.down
	return up, down
}

// Bytes that crossed the members' sockets so far.
func (d *Differ) Bytes() (up, down uint64) {
	t := d.traffic.total()
	return t.up, t.down
}

func (d *Differ) evaluation(e *Evaluation) (Entry, bool) {
	tokens, known := d.tokensAt[e.Version]
	if d.evaluated[e.Version] || !finite(e.Loss) || (!known && e.Version != 0) {
		return Entry{}, false
	}
	d.evaluated[e.Version] = true
	c := *e
	c.TokensTotal = tokens
	return Entry{Kind: KindEvaluation, Evaluation: &c}, true
}

func (d *Differ) progress(s *coordinatorv1.FederationStatus) *Progress {
	total := d.traffic.total()
	p := &Progress{
		RoundsCommitted: s.GetRoundsCommitted(), RoundsVoid: s.GetRoundsVoid(), Tokens: s.GetCommittedSamples(),
		BytesUp: total.up, BytesDown: total.down, Parameters: s.GetParameters(),
	}
	for _, site := range s.GetSites() {
		l, at := site.GetLedger(), d.traffic.site(site.GetName())
		t := SiteTotals{
			Name: site.GetName(), Rounds: site.GetRoundsContributed(), Tokens: site.GetSamples(),
			TrainingSeconds: site.GetTrainingSeconds(), EnergyKWh: l.GetEnergyKwh(), EnergySource: l.GetEnergySource(),
			Coverage: l.GetCoverage(), BytesUp: at.up, BytesDown: at.down,
		}
		if l != nil {
			t.MarginalKg, t.AverageKg = l.MarginalKgco2E, l.AverageKgco2E
		}
		p.Sites = append(p.Sites, t)
	}
	return p
}

// membersOf guesses a round's members from the last status before its end.
func membersOf(s *coordinatorv1.FederationStatus) []Member {
	var out []Member
	round := s.GetRound().GetNumber()
	for _, site := range s.GetSites() {
		for _, m := range site.GetMembers() {
			if round == 0 || m.GetRound() != round || m.GetSamples() == 0 {
				continue
			}
			e := Member{Name: site.GetName() + "/" + m.GetNode(), Site: site.GetName(), Steps: m.GetSteps(), Tokens: m.GetSamples()}
			if m.Loss != nil && finite(m.GetLoss()) {
				l := m.GetLoss()
				e.Loss = &l
			}
			out = append(out, e)
		}
	}
	return out
}

func meanLoss(members []Member) *float64 {
	var sum, weight float64
	for _, m := range members {
		if m.Loss != nil && m.Tokens > 0 && finite(*m.Loss) {
			sum += *m.Loss * float64(m.Tokens)
			weight += float64(m.Tokens)
		}
	}
	if weight == 0 {
		return nil
	}
	sum /= weight
	return &sum
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
