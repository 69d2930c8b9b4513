package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// playedEnergy says what the test says.
type playedEnergy struct {
	mu     sync.Mutex
	admit  map[string]bool
	faults map[string]*membership.Fault
	value  float64
	// silent: the engine has not decided yet, as after a restart.
	silent bool
}

func (e *playedEnergy) set(site string, admit bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.admit[site] = admit
}

func (e *playedEnergy) Wish(_ types.NamespacedName, site string) (membership.Energy, *coordinatorv1.Signal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	value := e.value
	if e.silent {
		return membership.Energy{}, &coordinatorv1.Signal{}
	}
	if e.admit[site] {
		return membership.Energy{Known: true, Admit: true, Window: v1alpha1.WindowOpen, Reason: v1alpha1.ReasonEnergyFavourable,
				Message: fmt.Sprintf("%g gCO2/kWh", value), Fresh: membership.Yes},
			&coordinatorv1.Signal{Window: "Open", Value: &value}
	}
	return membership.Energy{Known: true, Window: v1alpha1.WindowClosed, Reason: v1alpha1.ReasonWaitingForEnergy,
			Message: fmt.Sprintf("%g gCO2/kWh", value), Fresh: membership.Yes},
		&coordinatorv1.Signal{Window: "Closed", Value: &value}
}

func (e *playedEnergy) SiteFault(_ types.NamespacedName, site string) *membership.Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.faults[site]
}

// playedCoordinator answers as a coordinator of each federation does: a site waits
// until it is admitted, and a drain lasts as long as a member is at work.
type playedCoordinator struct {
	log *journal

	mu          sync.Mutex
	now         int64
	unreachable bool
	calls       int
	// deaf: no agent gets a session.
	deaf bool
	// still: no newer status comes.
	still bool
	sites map[string]*coordinatorv1.SiteStatus // <federation>/<site>
	// working members do not report before they are told to.
	working map[string]bool
}

func (c *playedCoordinator) site(federation, site string) *coordinatorv1.SiteStatus {
	key := federation + "/" + site
	if c.sites[key] == nil {
		c.sites[key] = &coordinatorv1.SiteStatus{Name: site, Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, Phase: "Idle", Reason: "SignalMissing"}
	}
	return c.sites[key]
}

func (c *playedCoordinator) Status(key types.NamespacedName) (*coordinatorv1.FederationStatus, membership.Tri, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unreachable {
		return nil, membership.No, "connection refused"
	}
	if !c.still {
		c.now++
	}
	out := &coordinatorv1.FederationStatus{Federation: key.Name, NowUnixMs: c.now}
	for name, s := range c.sites {
		if strings.HasPrefix(name, key.Name+"/") {
			out.Sites = append(out.Sites, proto.CloneOf(s))
		}
	}
	return out, membership.Yes, ""
}

func (c *playedCoordinator) SetMembership(_ context.Context, key types.NamespacedName, r *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	s := c.site(key.Name, r.Site)
	if r.Signal == nil {
		return nil, errors.New("a wish without a signal is a person's")
	}
	if s.Membership != r.Membership {
		c.log.add("seat " + strings.TrimPrefix(r.Membership.String(), "MEMBERSHIP_") + " " + r.Site)
	}
	s.Signal = r.Signal
	if !isHeld(s) {
		s.Membership, s.Reason, s.Message = r.Membership, r.Reason, r.Message
	}
	c.settle(key.Name, s)
	return &coordinatorv1.SetMembershipResponse{Membership: s.Membership}, nil
}

// settle sets the phase as the round machine does.
func (c *playedCoordinator) settle(federation string, s *coordinatorv1.SiteStatus) {
	state := coordinatorv1.MemberState_MEMBER_STATE_READY
	if c.working[federation+"/"+s.Name] {
		state = coordinatorv1.MemberState_MEMBER_STATE_TRAINING
	}
	for _, m := range s.Members {
		m.State = state
	}
	working := c.working[federation+"/"+s.Name] && len(s.Members) > 0
	switch {
	case s.Membership != coordinatorv1.Membership_MEMBERSHIP_ADMIT && working:
		s.Phase = "Draining"
	case s.Membership != coordinatorv1.Membership_MEMBERSHIP_ADMIT:
		s.Phase = "Idle"
	case len(s.Members) == 0 && s.Phase == "Active":
		s.Phase, s.Reason = "Lost", "ConnectionLost"
	case len(s.Members) == 0 && s.Phase != "Lost":
		s.Phase, s.Reason = "Joining", "WaitingForAgent"
	case len(s.Members) > 0:
		s.Phase, s.Reason = "Active", "Training"
	}
}

// connect makes these nodes the site's members.
func (c *playedCoordinator) connect(federation, site string, nodes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.site(federation, site)
	s.Members = nil
	for _, n := range nodes {
		if c.deaf {
			break
		}
		s.Members = append(s.Members, &coordinatorv1.MemberStatus{Node: n, Connected: true})
	}
	c.settle(federation, s)
}

func (c *playedCoordinator) work(federation, site string, at bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working[federation+"/"+site] = at
	c.settle(federation, c.site(federation, site))
}

func (c *playedCoordinator) reach(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreachable = !ok
}

// journal of what was done outside of the operator's own objects, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// localCluster has all nodes.
type localCluster struct{ client client.Client }

func (l localCluster) For(context.Context, *v1alpha1.Site) (client.Client, membership.Cluster, *membership.Fault) {
	return l.client, membership.Cluster{Reachable: membership.Yes}, nil
}

func (localCluster) Forget(types.NamespacedName) {}

// recorder keeps events.
type recorder struct{ journal }

func (r *recorder) Eventf(o, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.add(fmt.Sprintf("%s %s %s: %s", o.(client.Object).GetName(), kind, reason, fmt.Sprintf(note, args...)))
}

func (r *recorder) count(site string, reason v1alpha1.Reason) (n int) {
	for _, l := range r.all() {
		if strings.HasPrefix(l, site+" ") && strings.Contains(l, " "+string(reason)+":") {
			n++
		}
	}
	return n
}
