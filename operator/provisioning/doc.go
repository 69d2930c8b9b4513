// Package provisioning serves the scheduler's wishes for capacity over HTTP and
// takes what provisioners tell of them: the contract of api/provisioning.
//
// It owns the list, the watch and the callback's checks. It must not know what a
// wish leads to, nor how provisioners are asked.
package provisioning
