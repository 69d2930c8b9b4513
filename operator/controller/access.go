package controller

// The operator's rights, from which charts/girassol/files/rbac/role.yaml is
// generated; the chart renders that file and adds get and scale for the kinds in
// its value capacity.scaleTargets. Nothing is listed cluster-wide that holds
// secrets: Secrets are read by the names that objects give.
//
// Our kinds: the spec is the user's; of the metadata only our finalizers are
// written, and the finalizers subresources let owner references block deletion.
//
// +kubebuilder:rbac:groups=girassol.dev,resources=federations;sites,verbs=get;list;watch
// +kubebuilder:rbac:groups=girassol.dev,resources=federations;sites,verbs=patch
// +kubebuilder:rbac:groups=girassol.dev,resources=federations/status;sites/status,verbs=patch;update
// +kubebuilder:rbac:groups=girassol.dev,resources=federations/finalizers;sites/finalizers,verbs=update
//
// Children, by server-side apply, and what becomes of them.
//
// +kubebuilder:rbac:groups=apps,resources=statefulsets;daemonsets;deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services;configmaps;persistentvolumeclaims;serviceaccounts,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
//
// What is seen of agents, and what is told about changes.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//
// Nodes: the label that brings agents.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
//
// In the operator's own namespace (the chart puts its name in): the election of
// a leader, and the label by which the webhook's Service finds it.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=operator,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=pods,namespace=operator,verbs=get;patch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,namespace=operator,verbs=create;patch
