package corpus

import "slices"

// span is [lo, hi) on the ledger's axis, which puts the pass after the first open
// one behind it: sample x of pass p lies at (p-first)*Samples + x.
type span struct{ lo, hi uint64 }

// spans are ascending, not empty, and do not touch each other.
type spans []span

func (s spans) size() (n uint64) {
	for _, r := range s {
		n += r.hi - r.lo
	}
	return n
}

// add is the union of s and t.
func (s spans) add(t spans) spans {
	var out spans
	for len(s) > 0 || len(t) > 0 {
		if len(s) == 0 || len(t) > 0 && t[0].lo < s[0].lo {
			s, t = t, s
		}
		next := s[0]
		s = s[1:]
		if n := len(out); n > 0 && next.lo <= out[n-1].hi {
			out[n-1].hi = max(out[n-1].hi, next.hi)
			continue
		}
		out = append(out, next)
	}
	return out
}

// remove is what of s is not in t.
func (s spans) remove(t spans) spans {
	var out spans
	for _, r := range s {
		for len(t) > 0 && t[0].hi <= r.lo {
			t = t[1:]
		}
		for _, gone := range t {
			if gone.lo >= r.hi {
				break
			}
			if r.lo < gone.lo {
				out = append(out, span{r.lo, gone.lo})
			}
			r.lo = min(gone.hi, r.hi)
		}
		if r.lo < r.hi {
			out = append(out, r)
		}
	}
	return out
}

// holds says whether all of t is in s.
func (s spans) holds(t spans) bool {
	for _, r := range t {
		at, _ := slices.BinarySearchFunc(s, r, func(a, b span) int {
			if a.hi < b.hi {
				return -1
			}
			return 1
		})
		if at == len(s) || s[at].lo > r.lo {
			return false
		}
	}
	return true
}

// take cuts n from the front of s, in at most pieces pieces.
func (s spans) take(n uint64, pieces int) (taken, rest spans) {
	for i, r := range s {
		if n == 0 || len(taken) == pieces {
			return taken, s[i:]
		}
		if size := r.hi - r.lo; size > n {
			cut := r.lo + n
			return append(taken, span{r.lo, cut}), append(spans{{cut, r.hi}}, s[i+1:]...)
		}
		taken = append(taken, r)
		n -= r.hi - r.lo
	}
	return taken, nil
}
