package capacity

// Rights in the operator's cluster. For each kind in the chart's value
// capacity.scaleTargets the chart adds get on the resource, and get and update on
// its /scale; in other clusters the kubeconfig's user needs the same. Reading
// Cluster API's Cluster is optional: without it a paused Cluster is not noticed.
//
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get
