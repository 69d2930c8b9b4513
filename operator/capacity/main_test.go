package capacity

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// noLeaks fails a test that leaves goroutines behind.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
