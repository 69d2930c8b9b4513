package replica

import (
	coordinatorv1 "girassol.dev/api/coordinator/v1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/algorithm"
)

// Update is what one round's local work became: the payload lies in a file, and
// this is all that a Push says about it, so that it can be pushed again after a
// restart under the same id.
type Update struct {
	fileRef
	UpdateID    string             `json:"updateId"`
	Round       uint64             `json:"round"`
	BaseVersion uint64             `json:"baseVersion"`
	Encoding    algorithm.Encoding `json:"encoding"`
	// Weight is the number of samples.
	Weight          float64  `json:"weight"`
	Steps           uint64   `json:"steps"`
	Samples         uint64   `json:"samples"`
	Loss            *float64 `json:"loss,omitempty"`
	TrainingSeconds float64  `json:"trainingSeconds"`
	// EnergyJoules of the machine in the round; says nothing where EnergySource is
	// empty.
	EnergyJoules float64            `json:"energyJoules,omitempty"`
	EnergySource string             `json:"energySource,omitempty"`
	Agreement    *float64           `json:"agreement,omitempty"`
	Metrics      map[string]float64 `json:"metrics,omitempty"`
	Evaluation   *Evaluation        `json:"evaluation,omitempty"`
	// Consumed are the samples of the grant's data that the round's work used.
	Consumed []trainerv1.DataRange `json:"consumed,omitempty"`
	// Accepted by the coordinator, not yet seen in a commit.
	Accepted bool `json:"accepted,omitempty"`
	// Settled: merged; the residual file does not have it subtracted yet.
	Settled bool `json:"settled,omitempty"`
}

// Evaluation of the base model on held-out data.
type Evaluation struct {
	Version uint64             `json:"version"`
	Samples uint64             `json:"samples"`
	Loss    *float64           `json:"loss,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// Header says the update to the coordinator, for any session; the caller adds
// its token and epoch.
func (u *Update) Header(layoutDigest [32]byte) *coordinatorv1.PushHeader {
	h := &coordinatorv1.PushHeader{
		Kind: coordinatorv1.PushHeader_KIND_UPDATE, Round: u.Round, BaseVersion: u.BaseVersion,
		UpdateId: u.UpdateID, PayloadBytes: uint64(u.Bytes), LayoutDigest: layoutDigest[:],
		Weight: u.Weight, Steps: u.Steps, Samples: u.Samples, Loss: u.Loss,
		TrainingSeconds: u.TrainingSeconds, EnergyJoules: u.EnergyJoules, EnergySource: u.EnergySource,
		Agreement: u.Agreement, Metrics: u.Metrics,
	}
	if e := u.Evaluation; e != nil {
		h.Evaluation = &coordinatorv1.Evaluation{Version: e.Version, Samples: e.Samples, Loss: e.Loss, Metrics: e.Metrics}
	}
	for _, r := range u.Consumed {
		h.Consumed = append(h.Consumed, &coordinatorv1.DataRange{Begin: r.Begin, End: r.End, Pass: r.Pass})
	}
	return h
}
