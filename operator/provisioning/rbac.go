package provisioning

// Rights in the operator's cluster.
//
// +kubebuilder:rbac:groups=girassol.dev,resources=sites,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
