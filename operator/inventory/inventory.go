// Package inventory reads nodes: which GPUs they have, whether these can be used
// now and what is wrong with them.
//
// It owns the labels, taints and states of both vendors' operators. It is pure
// and must not know where nodes come from or what is decided by them. What is
// allocatable is the truth; labels only name it and may vanish for a while.
package inventory

import (
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Summary of the nodes of one site.
type Summary struct {
	// Nodes that the selector matches; Usable of them are Ready, not going away and
	// have allocatable GPUs (vendor CPU: are Ready); Enrolled carry our label for
	// this site.
	Nodes, Usable, Enrolled int
	// GPUs allocatable on usable nodes.
	GPUs   int
	Vendor v1alpha1.Vendor
	// Model of most of them, such as A100-SXM4-80GB; empty when no label tells.
	Model string
	// Trouble is the worst of what is wrong, Healthy if nothing is.
	Trouble Trouble
	// Enrol and Withdraw are the names of nodes, sorted: those that may have our
	// label and those that must not (cordoned, going away, in a driver upgrade), by
	// their vendor's label value.
	Enrol    []Node
	Withdraw []string
	// GoneBy is the earliest time at which a usable node announced that it goes;
	// zero without one.
	GoneBy time.Time
}

// Node that may be enrolled.
type Node struct {
	Name   string
	Vendor v1alpha1.Vendor
}

// Trouble with nodes.
type Trouble struct {
	Reason  v1alpha1.Reason
	Message string
}
