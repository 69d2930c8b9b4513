package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Quarantine of a site.
type Quarantine struct {
	Breach
	// Since is the round of the breach. The site's other updates of that round are
	// judged by themselves: what counts must not depend on which came first.
	Since uint64 `json:"since"`
	// Until is the first round in which its updates count again.
	Until uint64 `json:"until"`
}

// State is what admission remembers; its JSON is what is kept over restarts.
type State struct {
	Norms       Norms                 `json:"norms,omitempty"`
	Quarantines map[string]Quarantine `json:"quarantines,omitempty"`
}

// maxState bounds the JSON of a State.
const maxState = 1 << 20

// ParseState reads a State's JSON and refuses what Judge could not work with.
func ParseState(b []byte) (State, error) {
	var s State
	if len(b) > maxState {
		return State{}, fmt.Errorf("%d bytes, at most %d", len(b), maxState)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, err
	}
	if len(s.Norms) > history {
		return State{}, fmt.Errorf("%d norms, at most %d", len(s.Norms), history)
	}
	for i, e := range s.Norms {
		if !e.valid() {
			return State{}, fmt.Errorf("norms[%d] of site %q is %+v", i, e.Site, e)
		}
	}
	return s, nil
}

// Put a site in quarantine for so many rounds after this one.
func (s *State) Put(site string, round, rounds uint64, b Breach) {
	if rounds == 0 {
		return
	}
	if s.Quarantines == nil {
		s.Quarantines = map[string]Quarantine{}
	}
	s.Quarantines[site] = Quarantine{b, round, round + rounds + 1}
}

// Of is a site's quarantine in a round; ok says whether there is one.
func (s *State) Of(site string, round uint64) (q Quarantine, ok bool) {
	q, ok = s.Quarantines[site]
	return q, ok && round < q.Until
}

// Shut is Of for an update of a round: ok says that it must not count.
func (s *State) Shut(site string, round uint64) (q Quarantine, ok bool) {
	q, ok = s.Of(site, round)
	return q, ok && round > q.Since
}

// Release ends a site's quarantine and says whether it had one.
func (s *State) Release(site string) bool {
	_, had := s.Quarantines[site]
	delete(s.Quarantines, site)
	return had
}

// Expire ends the quarantines that are over in a round and names their sites.
func (s *State) Expire(round uint64) []string {
	var over []string
	for _, site := range slices.Sorted(maps.Keys(s.Quarantines)) {
		if round >= s.Quarantines[site].Until {
			over = append(over, site)
			delete(s.Quarantines, site)
		}
	}
	return over
}
