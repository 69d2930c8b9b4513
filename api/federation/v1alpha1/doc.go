// Package v1alpha1 holds the two kinds that people write, Federation and Site,
// and the one vocabulary of phases, conditions and reasons that status, events,
// metrics and logs share. The coordinator's YAML and the Kubernetes objects are
// the same schema.
//
// It owns field names, defaults and validation of single objects. It must not
// know how a round is run, where a signal comes from or that a cluster exists.
//
// +kubebuilder:object:generate=true
// +groupName=girassol.dev
package v1alpha1
