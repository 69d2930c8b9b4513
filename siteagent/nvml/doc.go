// Package nvml asks NVIDIA's management library (NVML) about the GPUs of this
// machine and sets their power limits. The library is loaded by a child process,
// agent-nvml, which this package starts, asks over pipes, and ends.
//
// A child has four reasons. The agent stays a static binary, and runs where the
// child cannot. A library that crashes takes only the child along, and one that
// hangs, as it does while a driver is reloaded, holds up nobody beyond a deadline.
// A process that has ended certainly holds no /dev/nvidia* open, which would keep
// an administrator from unloading the driver. And a child started after a driver's
// upgrade loads the upgraded library.
//
// Three rules keep the driver free. Between requests the child closes the library
// as long as something else keeps the GPUs awake: persistence mode or a process
// that computes. (Where nothing does, the last to close makes the driver forget
// the GPUs: seconds to bring back, and energy counters that begin anew.) A child
// that was asked nothing for a minute is ended. Release ends it at once.
//
// It must not know what the answers are used for.
package nvml
