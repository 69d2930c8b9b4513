// Package trainer owns the agent's end of the trainer API: the HTTP server on a
// Unix socket that hands tasks to the user's trainer and takes its results, and
// the supervisor that keeps a trainer process alive.
//
// It must not know the coordinator, the model's tensors or how updates are
// compressed: it moves tasks and paths, and enforces the stop time and the
// limits of the contract in api/trainer/v1.
package trainer
