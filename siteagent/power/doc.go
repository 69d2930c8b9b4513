// Package power owns the energy of this machine: it reads the counters and power
// sensors of processors and boards, adds up joules, and tells what a round drew,
// by which source and how surely. It also caps the power of GPUs and puts the limits
// before back, over a kill too.
//
// It must not know rounds of a federation, ledgers or intensities, and draws
// nothing from the environment: readers take the file system's root, NVML and the
// time.
//
// All figures are of the whole machine, other processes included, and of what has
// a meter: no fans, disks or losses of the power supply. Times should carry Go's
// monotonic clock, which stands still while the machine is suspended.
package power
