// Package agent owns a member's part in a federation: the session with its
// coordinator, the replica's way from commit to commit, the rounds between grant
// and upload, and the orderly leave.
//
// It must not know flags, environment or files of configuration, nor how a
// trainer process is started; it dials out only.
//
// Three goroutines share one Agent. The session goroutine keeps a connection and
// turns messages into orders. The worker alone touches the replica and the
// trainer; it does one thing at a time and looks at the orders in between. The
// event reader adds hints. A round runs on without a session: its stop time and
// its trainer are local, and what it yields lies on disk until it can be pushed.
package agent
