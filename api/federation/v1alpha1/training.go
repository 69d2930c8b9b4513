package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// EvaluationSpec says when and where the committed model is tried on held-out
// data, and what a bad result leads to.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gate) || (has(self.every) && self.every > 0)",message="the gate needs evaluations: set evaluation.every to the number of commits between two of them",fieldPath=".every"
type EvaluationSpec struct {
	// Every so many commits the model is evaluated; 0 (default) never. The sites do
	// it at the begin of their next round, before they train.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Every int64 `json:"every,omitempty"`
	// Site that evaluates; unset: all that take part, each on its own data,
	// weighted by samples.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Site string `json:"site,omitempty"`
	// Gate takes the model back after a bad result. Unset: results are only shown.
	// +optional
	Gate *GateSpec `json:"gate,omitempty"`
}

// GateSpec rolls the model back to the best evaluated version when a later one
// is worse by more than the margin. Only results of the same members are compared.
type GateSpec struct {
	// Margin above the best loss, as a fraction of it, that is still accepted.
	// Default 0.1.
	// +optional
	Margin *resource.Quantity `json:"margin,omitempty"`
	// MaxRollbacks without a better version between them, after which the run fails
	// rather than going round in circles. Default 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxRollbacks int32 `json:"maxRollbacks,omitempty"`
}

// DataSpec has the coordinator keep a ledger of the samples of a corpus that all
// sites can read: ranges are leased to members with their grants and consumed with
// the commits that used them, so that no sample counts twice and none is left out.
// Without it each site trains on data of its own.
//
// +kubebuilder:validation:XValidation:rule="self.samples >= oldSelf.samples",message="the corpus may grow, not shrink: samples that are counted already would be none; make a new Federation for another corpus",fieldPath=".samples",reason=FieldValueForbidden
type DataSpec struct {
	// Samples of the corpus, which trainers number from 0.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000000
	Samples int64 `json:"samples"`
	// LeaseSamples is the least that a member is leased at a time. Default 4096.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000
	LeaseSamples int64 `json:"leaseSamples,omitempty"`
	// Passes over the corpus, after which the run is complete; 0 (default) goes on.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Passes int64 `json:"passes,omitempty"`
}
