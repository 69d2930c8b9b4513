package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/admission"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// What a site may send, spec.admission. Norms are judged when an update is there,
// directions when all are; quotas before anything is taken. A site in quarantine is
// still granted work, so that rounds go on being counted where it is alone: its
// updates are refused before their bytes are sent and stay with it. It says nothing
// of the model either: its held-out results do not count.
type admitting struct {
	admission.State
	path string
	// sites is read without the engine's goroutine; its keys do not change.
	sites map[string]*admission.Site
	// strangers share the calls of sites that are not declared.
	strangers *admission.Site
	// leftOut of the round at work, by member, with what they are told at its end.
	leftOut map[string]string

	mu     sync.Mutex
	warned map[string]time.Time // of a site's calls quota
}

// admissionFile holds norms and quarantines over restarts. The norms could be had
// from the commit log, of which no more than a few commits may be left.
const admissionFile = "admission.json"

func (e *Engine) openAdmission() error {
	if err := e.cfg.Admission.Validate(); err != nil {
		return fmt.Errorf("federation %s: spec.admission.%w", e.cfg.Federation, err)
	}
	a := &e.admitting
	a.path = filepath.Join(e.cfg.DataDir, admissionFile)
	a.sites, a.strangers, a.warned = map[string]*admission.Site{}, admission.NewSite(admission.Quotas{}), map[string]time.Time{}
	for _, s := range e.cfg.Round.Sites {
		a.sites[s] = admission.NewSite(e.cfg.Admission.Quotas)
	}
	b, err := os.ReadFile(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		a.State, err = admission.ParseState(b)
	}
	if err != nil {
		return fmt.Errorf("federation %s: %s: %w; remove the file to forget norms and quarantines", e.cfg.Federation, a.path, err)
	}
	return nil
}

// keepAdmission writes what must survive. A full disk takes nothing from the
// decision, only from its memory over a restart.
func (e *Engine) keepAdmission() {
	err := e.store.Owned() // what a successor has learnt must stay
	if err == nil {
		err = tensor.WriteFileAtomic(e.admitting.path, func(w io.Writer) error { return json.NewEncoder(w).Encode(e.admitting.State) })
	}
	if err != nil {
		e.log.Error("norms and quarantines are not on disk; a restart would forget the newest", "error", err)
	}
}

// QuotaError says that a site has used up a quota, and after what time it may ask
// again.
type QuotaError struct {
	RefusedError
	RetryIn time.Duration
}

// Unwrap gives the refusal.
func (e *QuotaError) Unwrap() error { return &e.RefusedError }

// membersRetry is when a site without room for another member may ask again: a lost
// session is given up by then.
const membersRetry = 30 * time.Second

// Call takes a call of a site off its quota. It may be called from any goroutine
// and does not wait for the engine.
func (e *Engine) Call(site string) error {
	s, ok := e.admitting.sites[site]
	if !ok {
		s = e.admitting.strangers
	}
	now := time.Now()
	wait, perMinute, ok := s.Call(now)
	if ok {
		return nil
	}
	text := fmt.Sprintf("site %.80s has made its %d calls of a minute (spec.admission.quotas.callsPerMinute); call again in %s", site, perMinute, wait.Round(time.Millisecond))
	if e.warn(site, now) {
		e.log.Warn("calls refused", "site", cut(site), "reason", v1alpha1.ReasonCallsQuota, "message", text)
	}
	return &QuotaError{RefusedError{v1alpha1.ReasonCallsQuota, text}, wait}
}

// warn is true once a minute for a site, so that refusals do not fill the log.
func (e *Engine) warn(site string, now time.Time) bool {
	a := &e.admitting
	if a.sites[site] == nil {
		site = ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, ok := a.warned[site]; ok && now.Sub(last) < time.Minute {
		return false
	}
	a.warned[site] = now
	return true
}

// countMembers follows a change of a site's sessions.
func (e *Engine) countMembers(site string) {
	if s := e.admitting.sites[site]; s != nil {
		s.SetMembers(e.sessions.Count(site))
	}
}

func (e *Engine) membersQuota(site string) error {
	most := e.cfg.Admission.Quotas.MostMembers()
	if e.sessions.Count(site) < most {
		return nil
	}
	return &QuotaError{RefusedError{v1alpha1.ReasonMembersQuota,
		fmt.Sprintf("site %s has %d members with a session, which is all that it may have (spec.admission.quotas.members); try again when one has gone", site, most)}, membersRetry}
}

// bytesQuota refuses an update for which the round's quota has no room.
func (e *Engine) bytesQuota(s *session.Session, h *coordinatorv1.PushHeader) *coordinatorv1.PushResult {
	n := int64(h.GetPayloadBytes())
	if old := e.uploads[s.Member]; old != nil && sameUpload(old.header, h) {
		n -= old.offset // at least so much of it is here
	}
	quota, ok := e.admitting.sites[s.Site].Room(h.GetRound(), n, codec.MaxSize(e.model.domain, e.params().Uplink))
	if ok {
		return nil
	}
	return refused(v1alpha1.ReasonBytesQuota, "%s", bytesText(s.Site, h.GetRound(), quota))
}

func bytesText(site string, n uint64, quota int64) string {
	return fmt.Sprintf("site %s may upload %d bytes in round %d (spec.admission.quotas.bytesPerRound), repetitions counted; its work waits for the next round", site, quota, n)
}

// meter counts an upload's bytes as they arrive. It may be called beside the
// engine's goroutine.
func (u *Upload) meter(n int) error {
	if u.quota == nil {
		return nil
	}
	quota, ok := u.quota.Receive(u.header.GetRound(), int64(n), u.most)
	if ok {
		return nil
	}
	return &RefusedError{v1alpha1.ReasonBytesQuota, bytesText(u.site, u.header.GetRound(), quota)}
}

// quarantined refuses what a site in quarantine sends.
func (e *Engine) quarantined(site string, n uint64) *coordinatorv1.PushResult {
	q, ok := e.admitting.Shut(site, n)
	if !ok {
		return nil
	}
	return refused(v1alpha1.ReasonQuarantined, "site %s is in quarantine until round %d (%s: %s); its work stays with it. An admit of a person ends the quarantine: girassol admit %s",
		site, q.Until, q.Reason, q.Message, site)
}

// measure an update for its norm, beside the engine's goroutine; nil without a
// bound, which spares reading it again.
func (e *Engine) measure(u *Upload, p *codec.Payload) (*admission.Measure, error) {
	if e.cfg.Admission.MaxNormFactor == 0 && e.cfg.Admission.MinCosine == nil {
		return nil, nil
	}
	norm, err := admission.Norm(p.Domain().Blocks(), p)
	if err != nil {
		return nil, err
	}
	buffers := 0.0
	if err := p.EachBuffer(func(_ int, v []float32) { buffers += kernel.SumSquares(v) }); err != nil {
		return nil, err
	}
	return &admission.Measure{Norm: norm, Buffers: math.Sqrt(buffers), Steps: u.header.GetSteps(), Weight: u.header.GetWeight()}, nil
}

// judgeNorm is nil for an update that may count.
func (e *Engine) judgeNorm(u *Upload) *admission.Breach {
	if u.measured == nil {
		return nil
	}
	return e.admitting.Norms.Judge(e.cfg.Admission.MaxNormFactor, *u.measured)
}

// breached is what follows from an update that broke a bound.
func (e *Engine) breached(u *Upload, b admission.Breach) {
	n := u.header.GetRound()
	e.log.Warn("update broke a bound of spec.admission", "member", u.name, "round", n, "reason", b.Reason, "message", b.Message, "quarantineRounds", e.cfg.Admission.QuarantineRounds)
	if e.cfg.Admission.QuarantineRounds == 0 {
		return
	}
	e.admitting.Put(u.site, n, e.cfg.Admission.QuarantineRounds, b)
	e.keepAdmission()
	e.announce(events.Event{Type: events.Quarantined, Round: n, Site: u.site, Reason: string(b.Reason), Message: b.Message})
}

// endQuarantines of the sites whose rounds are over.
func (e *Engine) endQuarantines(n uint64) {
	over := e.admitting.Expire(n)
	if len(over) == 0 {
		return
	}
	e.keepAdmission()
	for _, site := range over {
		e.released(site, v1alpha1.ReasonReady, "its rounds are over")
	}
}

// release ends a site's quarantine by a person's word.
func (e *Engine) release(site string) {
	if e.admitting.Release(site) {
		e.keepAdmission()
		e.released(site, v1alpha1.ReasonAdmittedByPolicy, "a person has admitted the site")
	}
}

func (e *Engine) released(site string, reason v1alpha1.Reason, why string) {
	e.log.Info("quarantine is over", "site", site, "why", why)
	e.announce(events.Event{Type: events.Released, Round: e.machine.Status().Round, Site: site, Reason: string(reason), Message: "the quarantine is over: " + why})
}

func (e *Engine) quarantineStatus(site string) *coordinatorv1.Quarantine {
	q, ok := e.admitting.Of(site, e.machine.Status().Round)
	if !ok {
		return nil
	}
	return &coordinatorv1.Quarantine{Reason: string(q.Reason), Message: q.Message, UntilRound: q.Until}
}

// commit merges a round's updates, without those that go another way than the rest.
func (e *Engine) commit(a round.Commit) {
	if e.cfg.Admission.MinCosine == nil || len(a.Members) < 3 {
		e.commitAgreed(a)
		return
	}
	updates := make([]admission.Update, 0, len(a.Members))
	for _, name := range a.Members {
		u := e.uploads[name]
		updates = append(updates, admission.Update{Member: name, Site: u.site, Norm: u.measured.Norm, Vector: u.payload})
	}
	blocks, least := e.model.domain.Blocks(), *e.cfg.Admission.MinCosine
	e.background.Go(func() {
		out, err := admission.Disagreeing(blocks, updates, least)
		e.post(func() { e.directionsJudged(time.Now(), a, out, err) })
	})
}

func (e *Engine) directionsJudged(now time.Time, a round.Commit, out []admission.Outlier, err error) {
	if err != nil {
		e.mergeFailed(now, a, failure{err: fmt.Errorf("%w: %w", errUntouched, err)})
		return
	}
	if len(out) == 0 {
		e.commitAgreed(a)
		return
	}
	if e.admitting.leftOut == nil {
		e.admitting.leftOut = map[string]string{}
	}
	for _, o := range out {
		name := a.Members[o.Index]
		u := e.uploads[name]
		e.breached(u, o.Breach)
		e.admitting.leftOut[name] = fmt.Sprintf("%s: your update was left out: %s; its work stays with you", o.Reason, o.Message)
		e.observeRefused(u.site, o.Reason)
		delete(e.uploads, name)
		u.close()
	}
	a.Members = slices.DeleteFunc(slices.Clone(a.Members), func(name string) bool { return e.uploads[name] == nil })
	a.Alone = len(a.Members) == 1
	sites := map[string]bool{}
	for _, name := range a.Members {
		sites[e.uploads[name].site] = true
	}
	if len(sites) < e.cfg.Round.MinSites {
		text := fmt.Sprintf("%d of at least %d sites are left, for the updates of %d members go another way than the rest (spec.admission.minCosine)", len(sites), e.cfg.Round.MinSites, len(out))
		e.act(now, e.thenRollBack(now, func() []round.Action { return e.machine.CommitFailed(now, v1alpha1.ReasonDirectionTooFar, text) }))
		return
	}
	e.commitAgreed(a)
}

func (e *Engine) observeRefused(site string, reason v1alpha1.Reason) {
	if e.hooks.Observe != nil {
		e.hooks.Observe.UpdateAnswered(site, UpdateRefused, reason)
	}
}

// learnNorms takes the norms of what was merged.
func (e *Engine) learnNorms(n uint64, uploads []*Upload) {
	bySite := map[string][]admission.Measure{}
	for _, u := range uploads {
		if u.measured != nil {
			bySite[u.site] = append(bySite[u.site], *u.measured)
		}
	}
	if len(bySite) > 0 {
		e.admitting.Norms = e.admitting.Norms.Merged(n, bySite)
		e.keepAdmission()
	}
}
