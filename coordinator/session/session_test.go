package session

import (
	"fmt"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func table(term uint64) *Table {
	n := 0
	return NewTable(term, func() string { n++; return fmt.Sprint("token", n) })
}

func hello(site, node string) *coordinatorv1.Hello {
	return &coordinatorv1.Hello{Site: site, Node: node}
}

func TestNewerSessionFencesTheOlderOfTheSameMemberOnly(t *testing.T) {
	tab, now := table(1), time.Unix(0, 0)
	old, _ := tab.Open(now, hello("a", "n"))
	other, _ := tab.Open(now, hello("a", "m"))
	newer, fenced := tab.Open(now, hello("a", "n"))
	if fenced != old || newer.Epoch <= old.Epoch || tab.Token(old.Token) != nil || tab.Token(newer.Token) != newer {
		t.Fatalf("fenced %v, epochs %d and %d", fenced, old.Epoch, newer.Epoch)
	}
	<-old.Done()
	if old.Reason() != v1alpha1.ReasonSuperseded {
		t.Errorf("the older session ended for %s", old.Reason())
	}
	if tab.Remove(old) {
		t.Error("the end of a fenced session counts")
	}
	if tab.Member("a/n") != newer || tab.Member("a/m") != other || tab.Count("a") != 2 || len(tab.BySite()["a"]) != 2 {
		t.Error("another session is gone")
	}
	if !tab.Remove(newer) || tab.Member("a/n") != nil {
		t.Error("the live session stays after its end")
	}
}

func TestEpochsGrowOverRestarts(t *testing.T) {
	now := time.Unix(0, 0)
	before := table(1)
	for range 100 {
		before.Open(now, hello("a", "n"))
	}
	after, _ := table(2).Open(now, hello("a", "n"))
	if last := before.Member("a/n"); after.Epoch <= last.Epoch {
		t.Errorf("epoch %d after a restart, %d before", after.Epoch, last.Epoch)
	}
}

func TestConnectionThatDoesNotDrainItsQueueIsClosed(t *testing.T) {
	s, _ := table(1).Open(time.Unix(0, 0), hello("a", "n"))
	for range outboxLength {
		s.Send(&coordinatorv1.SessionResponse{})
	}
	select {
	case <-s.Done():
		t.Fatal("closed although the queue has room")
	default:
	}
	s.Send(&coordinatorv1.SessionResponse{})
	<-s.Done()
	s.Close(v1alpha1.ReasonSuperseded)
	if s.Reason() != v1alpha1.ReasonConnectionLost || len(s.Outbox()) != outboxLength {
		t.Errorf("ended for %s with %d messages queued", s.Reason(), len(s.Outbox()))
	}
}

func TestSilentSessionsAreThoseNotHeardSince(t *testing.T) {
	tab, now := table(1), time.Unix(100, 0)
	tab.Open(now, hello("a", "n"))
	tab.Open(now.Add(time.Second), hello("b", "n"))
	if silent := tab.Silent(now.Add(time.Second)); len(silent) != 1 || silent[0].Member != "a/n" {
		t.Errorf("silent: %v", silent)
	}
}
