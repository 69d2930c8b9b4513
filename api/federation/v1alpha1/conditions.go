package v1alpha1

// Types of conditions. Unknown is not False: what cannot be seen is not said to
// be bad.
const (
	// ConditionReady: what should run now, given energy, runs. A federation or site
	// that sleeps by policy is Ready with reason WaitingForEnergy.
	ConditionReady = "Ready"
	// ConditionEnergyFavourable: the window is open; of a federation, at least
	// minSites windows are. False is normal.
	ConditionEnergyFavourable = "EnergyFavourable"
)

// Conditions of a Federation.
const (
	// ConditionAccepted: the spec can be acted on: sites and secrets exist.
	ConditionAccepted = "Accepted"
	// ConditionQuorumMet: at least minSites sites are active.
	ConditionQuorumMet = "QuorumMet"
	// ConditionCoordinatorAvailable: the coordinator answers.
	ConditionCoordinatorAvailable = "CoordinatorAvailable"
	// ConditionProgressing: rounds are committed.
	ConditionProgressing = "Progressing"
	// ConditionStalled is there only while True: a person is needed.
	ConditionStalled = "Stalled"
	// ConditionSuspended: spec.state or maxSites 0 lets it sleep.
	ConditionSuspended = "Suspended"
)

// Conditions of a Site.
const (
	// ConditionSignalFresh: the signal is known and believed.
	ConditionSignalFresh = "SignalFresh"
	// ConditionCapacityReady: nodes with allocatable GPUs are there.
	ConditionCapacityReady = "CapacityReady"
	// ConditionNodesHealthy: no node is lost, cordoned, tainted or in a driver
	// upgrade, no agent crashes; the worst of these is the reason.
	ConditionNodesHealthy = "NodesHealthy"
	// ConditionAgentConnected: the coordinator hears the agent.
	ConditionAgentConnected = "AgentConnected"
	// ConditionLinkEncrypted: by certificates, or as a mesh declares.
	ConditionLinkEncrypted = "LinkEncrypted"
	// ConditionDraining: the site leaves in order.
	ConditionDraining = "Draining"
	// ConditionClusterReachable is there for sites with spec.cluster.
	ConditionClusterReachable = "ClusterReachable"
)

// Names on Kubernetes objects.
const (
	// LabelAgent on a node, with the vendor in lower case, brings the agent;
	// removing it drains exactly that agent.
	LabelAgent = Group + "/agent"
	// LabelFederation and LabelSite are on everything that belongs to one.
	LabelFederation = Group + "/federation"
	LabelSite       = Group + "/site"
	// LabelNodeSite on a node says for which site it is enrolled: <namespace>.<site>,
	// or a hash where that is too long for a label.
	LabelNodeSite = Group + "/enrolled-for"
	// FinalizerSiteRelease gives nodes and capacity back before a Site goes.
	FinalizerSiteRelease = Group + "/site-release"
	// FinalizerFederationDrain keeps a federation's coordinator until its sites have
	// left, for the grace of a drain and a little more at most.
	FinalizerFederationDrain = Group + "/federation-drain"
	// FieldOwner of all that the operator applies.
	FieldOwner = "girassol-operator"
)
