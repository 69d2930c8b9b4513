package director

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/signalpush"
	"girassol.dev/signals/store"
	"girassol.dev/signals/webhook"
	"girassol.dev/signals/window"
)

func TestAnOverrideCountsAtOnceUntilItExpiresOrIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{
			{Name: "dirty", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(500, 20)...)}},
			{Name: "clean", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 20)...)}},
			{Name: "silent", Policy: below100(1, 1), Source: sourceFunc(hang)},
		}})
		until(clock, 1)
		for _, o := range []struct {
			site  string
			admit bool
			until float64
		}{{"dirty", true, 17.5}, {"clean", false, 60}, {"silent", true, 7}} {
			if err := d.Override(o.site, o.admit, t0.Add(time.Duration(o.until*float64(time.Minute))), "because"); err != nil {
				t.Fatal(err)
			}
		}
		until(clock, 2)
		if w := members.last(t, "clean"); w.Admit || w.Reason != v1alpha1.ReasonOverride || !strings.Contains(w.Message, "by hand") {
			t.Errorf("%+v", w)
		}
		until(clock, 33)
		if err := d.ClearOverride("clean"); err != nil {
			t.Fatal(err)
		}
		if err := d.ClearOverride("dirty"); err != nil {
			t.Errorf("none to clear: %v", err)
		}
		until(clock, 40)
		stop()
		sameMinutes(t, "dirty", members.changes("dirty"), []float64{1, 17.5})
		sameMinutes(t, "clean", members.changes("clean"), []float64{0, 1, 33})
		sameMinutes(t, "silent", members.changes("silent"), []float64{1, 7})
	})
}

func TestOverridesWithoutAnEndToComeAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		broken := &failing{}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Store: broken, Sites: []Site{
			{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(500, 20)...)}}}})
		until(clock, 10)
		for name, err := range map[string]error{
			"no end":   d.Override("a", true, time.Time{}, ""),
			"past":     d.Override("a", true, t0.Add(9*time.Minute), ""),
			"too long": d.Override("a", true, t0.Add(window.MaxOverride+time.Hour), ""),
			"unknown":  d.Override("b", true, t0.Add(time.Hour), ""),
			"clear":    d.ClearOverride("b"),
		} {
			if err == nil {
				t.Errorf("%s was accepted", name)
			}
		}
		broken.err = errors.New("disk full")
		if err := d.Override("a", true, t0.Add(time.Hour), ""); !errors.Is(err, broken.err) {
			t.Errorf("%v", err)
		}
		until(clock, 20)
		stop()
		sameMinutes(t, "a", members.changes("a"), nil)
	})
}

// failing is a store whose memory cannot be written.
type failing struct {
	store.Files
	err error
}

func (f *failing) Load() (map[string]window.State, error)             { return nil, nil }
func (f *failing) Save(string, window.State) error                    { return nil }
func (f *failing) LoadOverrides() (map[string]window.Override, error) { return nil, nil }
func (f *failing) SaveOverride(_ string, _ *window.Override) error    { return f.err }

func TestPushedOverridesAndReadingsCountAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		source := &scripted{clock: clock, values: v(repeat(500, 20)...)}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{
			{Name: "a", Region: "west", Policy: below100(1, 1), Source: source}}})
		until(clock, 11)
		sink := d.Sink()
		calls := source.calls
		sink.Reading(webhook.Target{Site: "a"}, source.at(clock.Now()))
		sink.Reading(webhook.Target{Site: "other"}, source.at(clock.Now()))
		until(clock, 11.05)
		if source.calls != calls+1 {
			t.Errorf("asked %d times after a pushed reading", source.calls-calls)
		}
		push := webhook.Override{Target: webhook.Target{Region: "west"}, Source: "ops", Action: signalpush.ActionOn, Until: t0.Add(time.Hour), Reason: "test"}
		sink.Override(push)
		until(clock, 12)
		if w := members.last(t, "a"); !w.Admit || w.Reason != v1alpha1.ReasonOverride || !strings.Contains(w.Message, "by ops") {
			t.Errorf("%+v", w)
		}
		push.Until = t0 // refused, the one before holds
		sink.Override(push)
		until(clock, 13)
		push.Action, push.Until = signalpush.ActionAuto, time.Time{}
		sink.Override(push)
		until(clock, 14)
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{11.05, 13})
	})
}
