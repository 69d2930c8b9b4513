// Package coredump keeps keys, tokens and passwords out of core dumps: a process that
// calls Off leaves none.
//
// It owns the process's RLIMIT_CORE and nothing else. It must not know what the
// process holds. It does not make the process undumpable (PR_SET_DUMPABLE): that
// would give its files below /proc to root, which profiles and the search for
// trainers left behind need.
package coredump

// Off lets this process and what it starts leave no core dump, and returns a function
// that gives another process, one it has started, the limit that was there before.
// The hard limit stays, as without it nobody could give the old one back.
func Off() (restore func(pid int) error, err error) { return off(false) }

// OffForGood lets this process and what it starts leave no core dump and never one
// again; for processes that start no program of the user's.
func OffForGood() error {
	_, err := off(true)
	return err
}
