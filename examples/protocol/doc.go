// Package protocol simulates a federation's rounds, sessions and drains under random
// schedules of faults, and checks after each step what must always hold.
//
// What decides in the product decides here: coordinator/round, coordinator/session,
// coordinator/merge, internal/codec, internal/replica and internal/algorithm, on a
// model of a few elements. What is not pure in the product is modelled by the same
// rules and is the part that can differ from it: the engine's answers to pushes and
// its way to a commit (coordinator.go), the agent's orders, worker and replica
// (member.go), and both disks, which keep what was written before a crash. Rollbacks,
// evaluations, shared data and first weights from a site are not part of it.
//
// A schedule is a list of steps that name nothing by itself: what a step acts on
// follows from the world as it finds it. So each sub-list is a schedule, too, and one
// that fails can be cut down to a few steps.
//
// It must not know clocks, files or networks: the same seed gives the same run.
package protocol
