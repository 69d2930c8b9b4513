// Package resources builds what the operator runs for a federation: the
// coordinator with all that belongs to it, and the agents of each site.
//
// It owns names, labels and the shape of pods. It is pure: the same input gives
// the same bytes, so that an unchanged world needs no write. It must not know
// what is in the cluster already.
package resources

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Images that the operator takes where a spec names none.
type Images struct {
	Coordinator, Agent, Redis string
}

// Peer says which pods a NetworkPolicy means.
type Peer struct {
	Namespace string
	Labels    map[string]string
}

// FederationInput is what a federation's children are built from.
type FederationInput struct {
	Federation *v1alpha1.Federation
	// Sites that the federation names and that exist, in any order. One that does
	// not exist is a name without more to the coordinator.
	Sites  []v1alpha1.Site
	Images Images
	// Operator may call the coordinator. Without a namespace it runs outside the
	// cluster and no NetworkPolicy is in its way that would not be in everyone's.
	Operator Peer
}

// AgentInput is what a site's agents on the nodes of one vendor are built from.
type AgentInput struct {
	Federation *v1alpha1.Federation
	Site       *v1alpha1.Site
	Vendor     v1alpha1.Vendor
	// GPUs of each node, all of which its trainer gets. Nodes with fewer do not
	// start one, so it is the smallest number among the site's nodes.
	GPUs int32
	// Resource name of the devices as the nodes show it; empty is the vendor's
	// standard one. A name in spec.agent.vendors wins.
	Resource string
	Images   Images
}

// InvalidSpecError says which field cannot be acted on, and the way out.
type InvalidSpecError struct {
	// Field is its path, such as spec.agent.trainer.env.
	Field   string
	Message string
}

func (e *InvalidSpecError) Error() string { return e.Field + ": " + e.Message }

func invalid(field, format string, args ...any) error {
	return &InvalidSpecError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Federation builds all children of a federation but the Secrets, in the order in
// which to apply them. An error is an *InvalidSpecError.
func Federation(in FederationInput) ([]runtime.ApplyConfiguration, error) {
	config, err := coordinatorConfig(in.Federation, in.Sites)
	if err != nil {
		return nil, err
	}
	children := []runtime.ApplyConfiguration{
		serviceAccount(in.Federation, CoordinatorName(in.Federation.Name), ComponentCoordinator),
		serviceAccount(in.Federation, AgentAccountName(in.Federation.Name), ComponentAgent),
		coordinatorConfigMap(in.Federation, config),
		coordinatorService(in.Federation),
		coordinatorNetworkPolicy(in.Federation, in.Operator),
		coordinatorDisruptionBudget(in.Federation),
	}
	if trial(in.Federation) {
		children = append(children, redis(in.Federation, in.Images.Redis)...)
	}
	// Last what can be refused for what was built before: a claim cannot shrink.
	return append(children, commits(in.Federation), coordinator(in.Federation, hash(config), in.Images)), nil
}

// Agent builds the DaemonSet of a site's agents on nodes of one vendor. An error
// is an *InvalidSpecError.
func Agent(in AgentInput) (*appsv1ac.DaemonSetApplyConfiguration, error) {
	return agent(in)
}
