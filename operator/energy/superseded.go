package energy

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// The last claimer of a federation's ConfigMaps writes. Whoever finds another's
// claim halts that federation, and claims it again after a pause that grows each
// time. The claim is no proof of another leader: whoever may edit ConfigMaps in
// the namespace can make one, so it costs only the federation it is in. An engine
// ends when it loses its lease, which its manager sees; until then two of them
// take turns, ever more seldom, and none writes over what it has not read.

const (
	longestPause = 10 * time.Minute
	// calm is how long a claim has to last for the pauses to begin anew.
	calm = time.Hour
)

const heldMessage = "another writer changed the ConfigMaps of the federation's signals: the last decision stays until they are claimed again; " +
	"if it comes again, see who but the operator may edit ConfigMaps in the namespace"

func newLosses() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "girassol_operator_signals_superseded_total",
		Help: "How often another writer was found in the ConfigMaps of a federation's signals.",
	}, []string{"namespace", "federation"})
}

// superseded says that another's claim was found; changing is held.
func (f *federation) superseded() bool {
	return f.state != nil && errors.Is(context.Cause(f.alive), errSuperseded)
}

// giveWay halts a superseded director and forgets its memory, to be read again
// after a pause; changing is held.
func (f *federation) giveWay() {
	if !f.superseded() {
		return
	}
	cause := context.Cause(f.alive)
	f.halt()
	f.closeState(false)
	if time.Since(f.claimed) > calm {
		f.losses = 0
	}
	pause := min(f.engine.options.SaveEvery<<min(f.losses, 10), longestPause)
	f.losses++
	f.again = time.Now().Add(pause)
	f.engine.losses.WithLabelValues(f.key.Namespace, f.key.Name).Inc()
	f.log.Warn("the federation's signals are halted, their state is read and claimed again after a pause", "pause", pause, "error", cause)
}

// hold lets the sites with a signal keep their last wish, and says why.
func (f *federation) hold(in *inputs) {
	f.await(in, heldMessage)
	for _, s := range in.directed {
		w, _ := f.wish(s.Name)
		if !w.energy.Known || f.fault(s.Name) != nil {
			continue
		}
		w.energy.Reason, w.energy.Message, w.energy.Fresh = v1alpha1.ReasonSuperseded, heldMessage, membership.No
		f.tell(s.Name, w)
	}
}
