package energy

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals/director"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/window"
)

// wish is what energy says of a site, as the other packages see it.
type wish struct {
	energy membership.Energy
	signal *coordinatorv1.Signal
}

func (w wish) same(o wish) bool { return w.energy == o.energy && proto.Equal(w.signal, o.signal) }

// unknown is the wish before the first decision.
func unknown(message string) wish {
	return wish{
		energy: membership.Energy{Window: v1alpha1.WindowUnknown, Reason: v1alpha1.ReasonSignalMissing, Message: message},
		signal: &coordinatorv1.Signal{Window: string(v1alpha1.WindowUnknown)},
	}
}

// out is the wish of a site whose spec cannot be acted on.
func out(f membership.Fault) wish {
	w := unknown(f.Message)
	w.energy.Known, w.energy.Reason, w.energy.Fresh = true, f.Reason, membership.No
	return w
}

// byPolicy is the wish of a site without a signal.
func byPolicy(o *window.Override) wish {
	w := unknown("the site has no energy signal and its policy is " + string(v1alpha1.EnergyIgnore))
	w.energy.Known, w.energy.Admit, w.energy.Reason = true, true, v1alpha1.ReasonAdmittedByPolicy
	if o != nil {
		w.energy.Admit, w.energy.Reason = o.Admit, v1alpha1.ReasonOverride
		w.energy.Message = "overridden until " + o.Until.UTC().Format(time.RFC3339) + " by " + o.By
		if o.Why != "" {
			w.energy.Message += ": " + o.Why
		}
	}
	return w
}

// decided is the wish that a director's is, with the intensities of now.
func decided(d director.Wish, g ledger.Grid, now time.Time) wish {
	s := d.Signal
	w := wish{
		energy: membership.Energy{Known: true, Admit: d.Admit, Window: s.Window, Reason: d.Reason, Message: d.Message, Fresh: membership.Yes},
		signal: &coordinatorv1.Signal{
			Kind: string(s.Kind), Unit: string(s.Unit), Region: s.Region, Value: s.Value, Window: string(s.Window),
			PointUnixMs: unixMilli(s.PointTime), NextChangeUnixMs: unixMilli(s.NextChange),
			Marginal: intensity(g.Marginal, now), Average: intensity(g.Average, now),
		},
	}
	if s.Value == nil || s.Window == v1alpha1.WindowUnknown || doubted[d.Reason] {
		w.energy.Fresh = membership.No
	}
	return w
}

// doubted are the reasons of a signal that is not believed.
var doubted = map[v1alpha1.Reason]bool{
	v1alpha1.ReasonSignalMissing: true, v1alpha1.ReasonSignalStale: true, v1alpha1.ReasonSignalSuspect: true,
	v1alpha1.ReasonSignalSuspectZero: true, v1alpha1.ReasonSignalFlatZero: true, v1alpha1.ReasonSignalOutage: true,
	v1alpha1.ReasonSignalJump: true, v1alpha1.ReasonSignalDisagrees: true,
}

// forEver is how far an intensity reaches that has no end.
const forEver = 24 * time.Hour

func intensity(of ledger.Intensity, now time.Time) *coordinatorv1.Intensity {
	if of == nil {
		return nil
	}
	step := of.At(now)
	if step.Value == nil {
		return nil
	}
	if step.Until.IsZero() {
		step.Until = step.From.Add(forEver)
	}
	if !step.Until.After(step.From) {
		return nil
	}
	return &coordinatorv1.Intensity{GramsPerKwh: *step.Value, FromUnixMs: unixMilli(step.From), UntilUnixMs: unixMilli(step.Until)}
}

func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// members takes what a director decides.
type members struct {
	f *federation
	r *run
}

// SetMembership implements director.Membership. A site comes in or goes out only
// when what led to it is kept: another leader would decide otherwise.
func (m members) SetMembership(ctx context.Context, site string, w director.Wish) error {
	if had, ok := m.f.wish(site); !ok || !had.energy.Known || had.energy.Admit != w.Admit {
		if err := m.r.state.Flush(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err() // ended: another run may have spoken
	}
	m.f.tell(site, decided(w, m.r.grids[site], m.f.engine.clock.Now()))
	return nil
}
