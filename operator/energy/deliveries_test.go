package energy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"girassol.dev/signals/webhook"
)

func TestADeliveryIsKnownOnlyWithItsMessage(t *testing.T) {
	ctx := t.Context()
	broken := errors.New("no API server")
	var fail atomic.Bool
	c := memory(func(string) error {
		if fail.Load() {
			return broken
		}
		return nil
	})
	s := open(t, c, "one", mostShard)
	commit := func(n int) webhook.Commit {
		return webhook.Commit{Source: "dso", At: t0, Deliveries: []webhook.Delivery{{ID: fmt.Sprint("id", n), Digest: fmt.Sprint("d", n)}},
			Entries: []webhook.Entry{{Source: "dso", Stream: "x", Received: t0, GeneratedAt: t0, Message: fmt.Appendf(nil, "%d", n)}}}
	}
	if err := s.Commit(ctx, commit(1)); err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	if err := s.Commit(ctx, commit(2)); !errors.Is(err, broken) {
		t.Fatalf("taken though not written: %v", err)
	}
	fail.Store(false)
	for _, s := range []*state{s, open(t, c, "two", mostShard)} {
		if _, ok, _ := s.Seen(ctx, "dso", "id2", t0); ok {
			t.Error("what was not written counts as taken")
		}
		if d, ok, _ := s.Seen(ctx, "dso", "id1", t0); !ok || d != "d1" {
			t.Errorf("%q %v", d, ok)
		}
		if _, ok, _ := s.Seen(ctx, "dso", "id1", t0.Add(retention+time.Hour)); ok {
			t.Error("remembered beyond its time")
		}
		if got, err := (pushedStore{s}).Load(ctx); err != nil || len(got) != 1 || string(got[0].Message) != "1" {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func TestDeliveriesAreBoundedAndTheNewestStay(t *testing.T) {
	ctx := t.Context()
	c := memory(nil)
	s := open(t, c, "one", mostShard)
	s.tokens.back = time.Nanosecond
	n := 0
	for n < (mostLeaves+3)*perLeaf {
		d := webhook.Commit{Source: "dso", At: t0}
		for range 300 {
			n++
			d.Deliveries = append(d.Deliveries, webhook.Delivery{ID: fmt.Sprint(n), Digest: strings.Repeat("d", 64)})
		}
		if err := s.Commit(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, c, "two", mostShard)
	leaves := s.seen["dso"].leaves
	if len(leaves) > mostLeaves || len(s.seen["dso"].seen) > mostLeaves*perLeaf {
		t.Errorf("%d leaves", len(leaves))
	}
	if _, ok, _ := s.Seen(ctx, "dso", fmt.Sprint(n), t0); !ok {
		t.Error("the newest is forgotten")
	}
	if _, ok, _ := s.Seen(ctx, "dso", "1", t0); ok {
		t.Error("the oldest is remembered")
	}
	if !slices.IsSortedFunc(leaves, func(a, b leaf) int { return a.number - b.number }) {
		t.Error("not in order")
	}
	// Past their time they go with the next one.
	s.tokens.back = time.Nanosecond
	if err := s.Commit(ctx, webhook.Commit{Source: "dso", At: t0.Add(retention + 2*time.Hour), Deliveries: []webhook.Delivery{{ID: "new", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	if n := len(s.seen["dso"].leaves); n > 2 {
		t.Errorf("%d leaves of the past", n)
	}
}
