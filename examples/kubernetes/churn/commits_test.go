package churn

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/siteagent/replica"
)

// checkCommits reads the commit log of a coordinator that has ended: the state
// recovers to the digest that was promised, no update counts twice, and samples
// add up.
func (r *rig) checkCommits() []checkpoint.Manifest {
	r.t.Helper()
	dir := filepath.Join(r.store(), "commits")
	latest, err := checkpoint.ReadLatest(dir)
	if err != nil {
		r.t.Fatalf("commit log: %v", err)
	}
	defer latest.Close()
	if latest.Empty() {
		r.t.Fatal("the commit log is empty: no site ever offered a model")
	}
	if digest := latest.State.Digest(); hex.EncodeToString(digest[:]) != latest.Latest().Digest {
		r.t.Errorf("the commit log recovers to %x, version %d promised %s", digest, latest.Latest().Version, latest.Latest().Digest)
	}
	reader, err := checkpoint.Read(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	manifests, err := reader.Manifests(0)
	if err != nil {
		r.t.Fatal(err)
	}
	updates := map[string]uint64{}
	var round, samples uint64
	for _, m := range manifests {
		if m.Round <= round {
			r.t.Errorf("version %d is of round %d after round %d", m.Version, m.Round, round)
		}
		round = m.Round
		for _, x := range m.Members {
			if v, twice := updates[x.UpdateID]; twice {
				r.t.Errorf("update %s counts in versions %d and %d", x.UpdateID, v, m.Version)
			}
			updates[x.UpdateID] = m.Version
			samples += x.Samples
		}
		if m.CommittedSamples != samples {
			r.t.Errorf("version %d says %d samples, its updates sum to %d", m.Version, m.CommittedSamples, samples)
		}
	}
	if len(manifests) == 0 {
		r.t.Error("nothing was committed")
	}
	return manifests
}

// line of an agent's log.
type line struct {
	Time    time.Time `json:"time"`
	Msg     string    `json:"msg"`
	Update  string    `json:"update"`
	Round   uint64    `json:"round"`
	Samples uint64    `json:"samples"`
}

// lines of all agents' logs.
func (r *rig) lines() []line {
	r.t.Helper()
	paths, err := filepath.Glob(filepath.Join(r.dir, "logs", "*_agent.log"))
	if err != nil || len(paths) == 0 {
		r.t.Fatalf("no logs of agents: %v", err)
	}
	var out []line
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			r.t.Fatal(err)
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			var l line
			if json.Unmarshal(s.Bytes(), &l) == nil {
				out = append(out, l)
			}
		}
		_ = f.Close()
	}
	return out
}

// checkUpdates: what the agents were told to be accepted is in the log with the
// same samples, and nothing else is. Not there is what was of a void round or of
// one that was lost as a whole with a coordinator that was killed, at most one for
// each kill: its work stays in the agents' residuals.
func (r *rig) checkUpdates(manifests []checkpoint.Manifest, kills int) {
	r.t.Helper()
	accepted, void := map[string]line{}, map[string]bool{}
	for _, l := range r.lines() {
		switch {
		case l.Msg == "update accepted":
			accepted[l.Update] = l
		case strings.HasPrefix(l.Msg, "the round was void"):
			void[l.Update] = true
		}
	}
	var samples uint64
	updates, committed := 0, map[uint64]bool{}
	for _, m := range manifests {
		committed[m.Round] = true
		for _, x := range m.Members {
			l, ok := accepted[x.UpdateID]
			switch {
			case !ok: // lost with an agent, a coordinator or their link
				r.t.Logf("update %s of %s in version %d: its agent never read the answer", x.UpdateID, x.Member, m.Version)
			case l.Samples != x.Samples:
				r.t.Errorf("update %s has %d samples in version %d, its agent sent %d", x.UpdateID, x.Samples, m.Version, l.Samples)
			}
			updates++
			samples += x.Samples
			delete(accepted, x.UpdateID)
		}
	}
	lost := map[uint64]bool{}
	for update, l := range accepted {
		switch {
		case void[update]:
		case committed[l.Round]:
			r.t.Errorf("update %s of round %d was accepted, and the round's commit does not have it", update, l.Round)
		default:
			lost[l.Round] = true
		}
	}
	if len(lost) > kills {
		r.t.Errorf("rounds %v were accepted and never committed; the coordinator was killed %d times", slices.Sorted(maps.Keys(lost)), kills)
	}
	r.t.Logf("%d updates of %d samples in %d commits; %d rounds lost in flight", updates, samples, len(manifests), len(lost))
}

// checkReplicas: what every agent holds on its disk is what the coordinator
// promised for that version.
func (r *rig) checkReplicas(manifests []checkpoint.Manifest) {
	r.t.Helper()
	digests := map[uint64]string{}
	for _, m := range manifests {
		digests[m.Version] = m.Digest
	}
	dirs, err := filepath.Glob(filepath.Join(r.dir, "p*", "data", "replica"))
	if err != nil || len(dirs) == 0 {
		r.t.Fatalf("no replicas: %v", err)
	}
	compared := 0
	for _, dir := range dirs {
		p, err := replica.Open(dir, federationName, slog.New(slog.DiscardHandler))
		if err != nil {
			r.t.Errorf("%s: %v", dir, err)
			continue
		}
		version, digest, ok := p.Held()
		if ok && version > 0 {
			compared++
			state := p.State().Digest()
			if got := hex.EncodeToString(digest[:]); got != digests[version] || state != digest {
				r.t.Errorf("%s holds version %d as %s (its bytes are %x), the coordinator promised %s", dir, version, got, state, digests[version])
			}
		}
		if err := p.Close(); err != nil {
			r.t.Error(err)
		}
	}
	if compared == 0 {
		r.t.Error("no replica holds a version")
	}
	r.t.Logf("%d of %d replicas compared, digests equal", compared, len(dirs))
}

// checkEndings: every agent that was asked to end did so by itself within the
// grace of its pod, and none crashed.
func (r *rig) checkEndings() {
	r.t.Helper()
	n := map[string]int{}
	for _, e := range r.kubelet.Endings() {
		if e.Container == "trainer" && e.Asked && !e.Killed {
			n["trainer"]++
			continue
		}
		if !e.Asked || e.Killed || e.ExitCode != 0 {
			r.t.Errorf("%s of pod %s on %s ended with code %d (asked %t, killed %t)", e.Container, e.Pod, e.Node, e.ExitCode, e.Asked, e.Killed)
		}
		n[e.Container]++
	}
	r.t.Logf("ended in order: %s", fmt.Sprint(n))
}
