// Package session knows which member speaks through which connection: epochs,
// tokens and liveness. A newer session of a member fences the older one.
//
// It must not know rounds or gRPC; it is driven by the engine and is not safe
// for concurrent use, except for what Session says of itself.
package session

import (
	"cmp"
	"slices"
	"sync"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// outboxLength bounds what waits for a slow connection.
const outboxLength = 64

// Session is one connection of a member. Send, Close, Done and Reason may be
// called from any goroutine; the other fields belong to the engine.
type Session struct {
	// Member is "site/node".
	Member, Site, Node string
	Epoch              uint64
	Token              string
	Hello              *coordinatorv1.Hello
	Seen               time.Time
	Last               *coordinatorv1.Heartbeat
	// Link tells what the coordinator sees of the connection; nil: nothing.
	Link func() *coordinatorv1.Link

	outbox chan *coordinatorv1.SessionResponse
	once   sync.Once
	done   chan struct{}
	reason v1alpha1.Reason
}

// Send queues a message. A connection that does not drain its queue is closed:
// a member that misses messages must start anew.
func (s *Session) Send(m *coordinatorv1.SessionResponse) {
	select {
	case s.outbox <- m:
	default:
		s.Close(v1alpha1.ReasonConnectionLost)
	}
}

// Outbox is what the connection has to write.
func (s *Session) Outbox() <-chan *coordinatorv1.SessionResponse { return s.outbox }

// Close ends the session; the first reason counts.
func (s *Session) Close(reason v1alpha1.Reason) {
	s.once.Do(func() {
		s.reason = reason
		close(s.done)
	})
}

// Done is closed when the session has ended; Reason then says why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Reason is why the session ended; read it after Done only.
func (s *Session) Reason() v1alpha1.Reason { return s.reason }

// Table holds the live sessions of one coordinator incarnation.
type Table struct {
	next     uint64
	newToken func() string
	byMember map[string]*Session
	byToken  map[string]*Session
}

// NewTable makes an empty table. term is the coordinator's incarnation: epochs
// grow over restarts because they start above term<<32.
func NewTable(term uint64, newToken func() string) *Table {
	return &Table{next: term << 32, newToken: newToken, byMember: map[string]*Session{}, byToken: map[string]*Session{}}
}

// Open starts a session and fences the member's older one, which is returned.
func (t *Table) Open(now time.Time, hello *coordinatorv1.Hello) (s, older *Session) {
	t.next++
	s = &Session{
		Member: hello.GetSite() + "/" + hello.GetNode(), Site: hello.GetSite(), Node: hello.GetNode(),
		Epoch: t.next, Token: t.newToken(), Hello: hello, Seen: now,
		outbox: make(chan *coordinatorv1.SessionResponse, outboxLength), done: make(chan struct{}),
	}
	older = t.byMember[s.Member]
	if older != nil {
		t.Remove(older)
		older.Close(v1alpha1.ReasonSuperseded)
	}
	t.byMember[s.Member] = s
	t.byToken[s.Token] = s
	return s, older
}

// Remove forgets a session. It says whether it was the member's live one.
func (t *Table) Remove(s *Session) bool {
	if t.byToken[s.Token] != s {
		return false
	}
	delete(t.byToken, s.Token)
	if t.byMember[s.Member] == s {
		delete(t.byMember, s.Member)
	}
	return true
}

// Member is the member's live session, nil without one.
func (t *Table) Member(name string) *Session { return t.byMember[name] }

// Token finds the live session of a token, nil when there is none (any more).
func (t *Table) Token(token string) *Session { return t.byToken[token] }

// All is every live session in member order.
func (t *Table) All() []*Session {
	out := make([]*Session, 0, len(t.byMember))
	for _, s := range t.byMember {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *Session) int { return cmp.Compare(a.Member, b.Member) })
	return out
}

// BySite is every live session by its site, in member order.
func (t *Table) BySite() map[string][]*Session {
	out := map[string][]*Session{}
	for _, s := range t.All() {
		out[s.Site] = append(out[s.Site], s)
	}
	return out
}

// Count is how many members of a site have a live session.
func (t *Table) Count(site string) int {
	n := 0
	for _, s := range t.byMember {
		if s.Site == site {
			n++
		}
	}
	return n
}

// Silent is every session from which nothing was heard since before.
func (t *Table) Silent(before time.Time) []*Session {
	var out []*Session
	for _, s := range t.All() {
		if s.Seen.Before(before) {
			out = append(out, s)
		}
	}
	return out
}
