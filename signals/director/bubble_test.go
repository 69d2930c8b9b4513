package director

import "testing"

// longBubble skips a long run of virtual time under the race detector: there
// Go 1.26 crashes at times (golang/go#78156). make test runs it without.
func longBubble(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("long runs of virtual time crash Go 1.26 under the race detector at times (golang/go#78156); run go test without -race")
	}
}
