package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Entry is what one site drew for one round.
type Entry struct {
	Round uint64 `json:"round"`
	Site  string `json:"site"`
	// From and To are the ends of the first and last span.
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Account Account   `json:"account"`
}

// roundSite is the key of an Entry.
type roundSite struct {
	round uint64
	site  string
}

// rounds are the entries of the newest rounds.
type rounds struct {
	keep    int
	entries map[roundSite]Entry
	order   []uint64 // the kept rounds, oldest first
}

// KeepRounds makes the ledger keep entries of the newest n rounds; 0, the
// default, keeps none. The accounts of the sites know of all rounds.
func (l *Ledger) KeepRounds(n int) {
	l.rounds.keep = max(n, 0)
	l.rounds.prune()
}

// Rounds are the kept entries by round and site.
func (l *Ledger) Rounds() []Entry {
	out := make([]Entry, 0, len(l.rounds.entries))
	for _, e := range l.rounds.entries {
		e.Account = e.Account.Plus(Account{})
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Round, b.Round), cmp.Compare(a.Site, b.Site)) })
	return out
}

// RestoreRounds replaces the entries; those of more rounds than are kept are
// dropped.
func (l *Ledger) RestoreRounds(entries []Entry) error {
	r := rounds{keep: l.rounds.keep}
	for _, e := range entries {
		if err := (&Ledger{}).Restore(map[string]Account{e.Site: e.Account}); err != nil {
			return fmt.Errorf("round %d: %w", e.Round, err)
		}
		r.put(e.Round, Entry{e.Round, e.Site, e.From, e.To, e.Account.Plus(Account{})})
	}
	l.rounds = r
	return nil
}

func (r *rounds) add(round uint64, s Span, a Account) {
	r.put(round, Entry{round, s.Site, s.From.Round(0).UTC(), s.To.Round(0).UTC(), a})
}

// put adds to the entry, if its round is among the newest.
func (r *rounds) put(round uint64, e Entry) {
	if r.keep == 0 {
		return
	}
	at, known := slices.BinarySearch(r.order, round)
	if !known {
		if len(r.order) == r.keep && at == 0 {
			return
		}
		r.order = slices.Insert(r.order, at, round)
	}
	if r.entries == nil {
		r.entries = map[roundSite]Entry{}
	}
	key := roundSite{round, e.Site}
	if old, ok := r.entries[key]; ok {
		if old.From.Before(e.From) {
			e.From = old.From
		}
		if old.To.After(e.To) {
			e.To = old.To
		}
		e.Account = old.Account.Plus(e.Account)
	}
	r.entries[key] = e
	r.prune()
}

func (r *rounds) prune() {
	if len(r.order) <= r.keep {
		return
	}
	r.order = slices.Clone(r.order[len(r.order)-r.keep:])
	for key := range r.entries {
		if _, kept := slices.BinarySearch(r.order, key.round); !kept {
			delete(r.entries, key)
		}
	}
}
