// Package trainerv1 is the contract between a site agent and the user's
// trainer: HTTP/JSON over a Unix socket, tensors as safetensors files in a
// folder that both see. openapi.yaml beside this file says the same for other
// languages.
//
//	GET  /v1/task?wait=30s            200 Task, 204 nothing to do
//	POST /v1/tasks/{id}/progress      Progress -> Directive
//	POST /v1/tasks/{id}/result        Result   -> 204
//	POST /v1/tasks/{id}/failure       Failure  -> 204
//	PUT  /v1/model                    Seed     -> 204, 409 when not wanted (any more)
//
// Errors are Problem bodies with a 4xx or 5xx status.
package trainerv1

import "time"

// The environment that the agent gives a trainer which it starts.
const (
	// EnvSocket is the path of the Unix socket.
	EnvSocket = "GIRASSOL_TRAINER_SOCKET"
	// EnvWorkDir is the folder that agent and trainer share; every path that a
	// trainer names must lead to a regular file in it.
	EnvWorkDir = "GIRASSOL_TRAINER_WORKDIR"
)

// Kind says what a task is.
type Kind string

// The kinds of tasks.
const (
	Train    Kind = "train"
	Evaluate Kind = "evaluate"
)

// Task is one piece of work. The trainer process lives on between tasks.
type Task struct {
	ID    string `json:"id"`
	Kind  Kind   `json:"kind"`
	Round uint64 `json:"round"`
	// ModelPath is the safetensors file to start from; read-only.
	ModelPath string `json:"modelPath"`
	// ResultPath is where a train task's weights go, as safetensors with the
	// names and shapes of ModelPath in any order.
	ResultPath string `json:"resultPath,omitempty"`
	// MaxSteps is the most local steps; 0 means until StopAt.
	MaxSteps uint64 `json:"maxSteps,omitempty"`
	// StopAt: no step may run after this. StopInSeconds is the same as a span
	// from the moment of the answer, for a trainer that trusts no clock.
	StopAt        time.Time `json:"stopAt"`
	StopInSeconds float64   `json:"stopInSeconds"`
	// CommittedSamples of all sites before this task: position of schedules.
	CommittedSamples uint64            `json:"committedSamples"`
	Config           map[string]string `json:"config,omitempty"`
	// Data of the corpus that this task may use, ascending and apart, in the order
	// in which it is to be used; empty where the federation keeps no data ledger.
	Data []DataRange `json:"data,omitempty"`
}

// DataRange is the samples [Begin, End) of one pass over the corpus, which counts
// from 0.
type DataRange struct {
	Begin uint64 `json:"begin"`
	End   uint64 `json:"end"`
	Pass  uint64 `json:"pass,omitempty"`
}

// Progress is a sign of life, sent after each step or so. Samples, steps and
// loss are those of this task.
type Progress struct {
	Steps   uint64   `json:"steps"`
	Samples uint64   `json:"samples"`
	Loss    *float64 `json:"loss,omitempty"`
	// Trainer is how it works, in its own words ("precision": "bf16", "batchSize":
	// "32"); at most 16 entries of at most 64 bytes each. For display only.
	Trainer map[string]string `json:"trainer,omitempty"`
}

// Action is what the trainer does next.
type Action string

// The actions.
const (
	// Continue with the next step.
	Continue Action = "continue"
	// Finish: post the result with the steps done so far.
	Finish Action = "finish"
	// Abort: drop the task, its result is not wanted.
	Abort Action = "abort"
)

// Directive answers a Progress.
type Directive struct {
	Action Action `json:"action"`
	Reason string `json:"reason,omitempty"`
}

// Result ends a task well. Samples is what the update weighs in the merge.
type Result struct {
	// Path is empty for an evaluate task.
	Path    string             `json:"path,omitempty"`
	Steps   uint64             `json:"steps"`
	Samples uint64             `json:"samples"`
	Loss    *float64           `json:"loss,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// Consumed is the part of the task's Data that the weights have seen, ascending
	// and apart. Required where the task has Data.
	Consumed []DataRange `json:"consumed,omitempty"`
}

// Failure ends a task badly; the agent asks again in a later round.
type Failure struct {
	Reason string `json:"reason"`
}

// Seed offers the first weights.
type Seed struct {
	Path string `json:"path"`
}

// Problem is the body of an error.
type Problem struct {
	Error string `json:"error"`
}
