package admission

import (
	"math"
	"sync"
	"time"
)

// Quotas of each site; zero fields have the defaults.
type Quotas struct {
	// BytesPerRound of uploads; 0: fourfold what its members' updates can need.
	BytesPerRound int64
	// Members with a session at a time; 0: 256.
	Members int
	// CallsPerMinute; 0: 6000 for each member with a session, and 6000 at least.
	CallsPerMinute int
}

const (
	defaultMembers = 256
	defaultCalls   = 6000
	// defaultRepeats is how often an update may be sent whole: once, and thrice again
	// over a bad line, though uploads resume.
	defaultRepeats = 4
)

// MostMembers of a site with a session.
func (q Quotas) MostMembers() int {
	if q.Members > 0 {
		return q.Members
	}
	return defaultMembers
}

// Bucket is a quota of so many tokens a minute, a minute's worth of which can be
// spent at once. The zero value is full.
type Bucket struct {
	spent float64
	at    time.Time
}

// Take takes a token, or says how long until there is one.
func (b *Bucket) Take(now time.Time, perMinute int) (wait time.Duration, ok bool) {
	rate := float64(perMinute) / 60
	if past := now.Sub(b.at).Seconds(); past > 0 {
		b.spent = max(b.spent-past*rate, 0)
		b.at = now
	}
	if b.spent+1 <= float64(perMinute) {
		b.spent++
		return 0, true
	}
	return time.Duration(math.Ceil((b.spent+1-float64(perMinute))/rate*1000)) * time.Millisecond, false
}

// Site counts what one site uses. It is safe for concurrent use.
type Site struct {
	mu      sync.Mutex
	quotas  Quotas
	members int
	calls   Bucket
	round   uint64
	bytes   int64
	most    int // members in the round
}

// NewSite has used nothing.
func NewSite(q Quotas) *Site { return &Site{quotas: q} }

// SetMembers says how many of its members have a session.
func (s *Site) SetMembers(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = n
	s.most = max(s.most, n)
}

// Call takes one call's place, or says how long until there is one and how many a
// minute are the site's.
func (s *Site) Call(now time.Time) (wait time.Duration, perMinute int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	perMinute = s.quotas.CallsPerMinute
	if perMinute <= 0 {
		perMinute = defaultCalls * max(s.members, 1)
	}
	wait, ok = s.calls.Take(now, perMinute)
	return wait, perMinute, ok
}

// Room says whether so many bytes more of a round are within the quota; an update
// of the model has at most size bytes.
func (s *Site) Room(round uint64, n, size int64) (quota int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(round)
	quota = s.quota(size)
	return quota, n <= quota-s.bytes
}

// Receive counts received bytes of a round and says whether they were within the
// quota. Bytes of an older round count for the one at work.
func (s *Site) Receive(round uint64, n, size int64) (quota int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(round)
	s.bytes += n
	quota = s.quota(size)
	return quota, s.bytes <= quota
}

func (s *Site) begin(round uint64) {
	if round > s.round {
		s.round, s.bytes, s.most = round, 0, s.members
	}
}

func (s *Site) quota(size int64) int64 {
	if s.quotas.BytesPerRound > 0 {
		return s.quotas.BytesPerRound
	}
	if each := int64(defaultRepeats * max(s.most, 1)); size <= math.MaxInt64/each {
		return size * each
	}
	return math.MaxInt64
}
