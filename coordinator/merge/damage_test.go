package merge

import (
	"errors"
	"io"
	"math"
	"testing"
)

// A residual with a NaN is damaged memory: the holder has to restore it.
func TestADamagedResidualIsNoticedAndIsToBeRestored(t *testing.T) {
	l := mixedLayout(t)
	for _, p := range lossy {
		cfg := configure(l, p)
		s := randomState(l, 1)
		r := make([]float32, cfg.Uplink.Len())
		r[len(r)-1] = float32(math.NaN())
		if _, err := Merge(s, r, cfg, randomUpdates(t, cfg, 2, 1), io.Discard); !errors.Is(err, ErrPartial) {
			t.Errorf("%+v: %v, want ErrPartial", p, err)
		}
		s.Close()
	}
}
