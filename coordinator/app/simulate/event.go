package simulate

import "time"

// kind of an event. Events of one instant are taken in this order: what is known
// before what is decided by it, what ends before what begins.
type kind uint8

const (
	sample   kind = iota // a point of the picture
	forecast             // a forecast is issued
	point                // a point of the signal begins, or there is a gap
	wake                 // the window can change without a point
	plan                 // the choice of sites is made anew
	trained              // a member ends its training
	reported             // its update has arrived
	off                  // a site is switched off
	ready                // a start is done
	tick                 // the round machine wants to be called
	enough               // the work is done
	kinds
)

// nobody is the site of events that are nobody's.
const nobody = 0

type event struct {
	at    int64 // unix nanoseconds
	site  int32
	kind  kind
	stamp uint32
}

func (e event) before(o event) bool {
	switch {
	case e.at != o.at:
		return e.at < o.at
	case e.kind != o.kind:
		return e.kind < o.kind
	}
	return e.site < o.site
}

// queue is a binary heap of events. One event of each kind and site counts: the
// last one that was pushed.
type queue struct {
	heap   []event
	stamps [][kinds]uint32
}

func newQueue(sites int) *queue { return &queue{stamps: make([][kinds]uint32, max(sites, 1))} }

// set puts the event of this kind and site at t, in place of the one before.
func (q *queue) set(t time.Time, k kind, site int) {
	q.stamps[site][k]++
	q.heap = append(q.heap, event{t.UnixNano(), int32(site), k, q.stamps[site][k]})
	h := q.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// cancel takes back the event of this kind and site.
func (q *queue) cancel(k kind, site int) { q.stamps[site][k]++ }

// next is the earliest event that counts.
func (q *queue) next() (event, bool) {
	for len(q.heap) > 0 {
		if e := q.heap[0]; e.stamp == q.stamps[e.site][e.kind] {
			return e, true
		}
		q.drop()
	}
	return event{}, false
}

// drop removes the earliest event.
func (q *queue) drop() {
	h := q.heap
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < n && h[c].before(h[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	q.heap = h
}
