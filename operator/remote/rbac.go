package remote

// Rights in the operator's cluster. In the other cluster the kubeconfig's user
// needs get, list, watch and patch on nodes, and what capacity mode Scale needs.
//
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=girassol.dev,resources=sites,verbs=get;list;watch
