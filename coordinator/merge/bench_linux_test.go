package merge

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// processSeconds of CPU, user and system, of all threads.
func processSeconds(tb testing.TB) float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		tb.Fatal(err)
	}
	return float64(ts.Sec) + float64(ts.Nsec)*1e-9
}

// commitParams is more than any cache holds.
const commitParams = 1 << 25

// BenchmarkCommit is all that a commit computes: two updates merged, the delta
// encoded, the model stepped and its digest taken. It reports CPU seconds of the
// process per giga-parameter.
func BenchmarkCommit(b *testing.B) {
	l, err := tensor.NewLayout([]tensor.Spec{
		{Name: "a", DType: tensor.F32, Shape: []int64{4096}, Role: tensor.Parameter},
		{Name: "w", DType: tensor.F32, Shape: []int64{commitParams >> 13, 1 << 13}, Role: tensor.Parameter},
	})
	if err != nil {
		b.Fatal(err)
	}
	sparse := algorithm.Parameters{
		Strategy: algorithm.DecoupledMomentum, OuterLearningRate: 1, OuterMomentum: 0.6,
		Uplink:   algorithm.Encoding{Transform: algorithm.DCT64, KeepOneIn: 16, Values: algorithm.TwoBit},
		Downlink: algorithm.Encoding{Transform: algorithm.DCT64, KeepOneIn: 8, Values: algorithm.TwoBit},
	}
	eight, one := sparse, sparse
	eight.Uplink.Values, eight.Downlink.Values = algorithm.EightBit, algorithm.EightBit
	one.Uplink.Values, one.Downlink.Values = algorithm.OneBit, algorithm.OneBit
	dense, err := algorithm.Defaults(algorithm.DiLoCo)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		params algorithm.Parameters
	}{{"sparse", sparse}, {"sparse 8bit", eight}, {"sparse 1bit", one}, {"dense", dense}} {
		b.Run(c.name, func(b *testing.B) { benchCommit(b, l, c.params) })
	}
}

func benchCommit(b *testing.B, l *tensor.Layout, p algorithm.Parameters) {
	d := codec.NewDomain(l, p.Uplink.Transform)
	x := tensor.NewVector(d.Len())
	defer tensor.FreeVector(x)
	updates := make([]Update, 2)
	for i := range updates {
		fillHeavy(x, uint64(i))
		var buf bytes.Buffer
		buf.Grow(int(codec.MaxSize(d, p.Uplink)))
		if _, err := codec.Encode(&buf, d, p.Uplink, x, codec.Aux{}); err != nil {
			b.Fatal(err)
		}
		payload, err := codec.Parse(d, p.Uplink, bytes.NewReader(buf.Bytes()), int64(buf.Len()), nil)
		if err != nil {
			b.Fatal(err)
		}
		updates[i] = Update{Member: fmt.Sprint(i), Weight: 1 + float64(i), Payload: payload}
	}
	s := tensor.NewState(l)
	defer s.Close()
	var residual []float32
	if !p.Downlink.Lossless() {
		residual = x
		fillHeavy(residual, 3)
	}
	fillHeavy(s.Theta, 4)
	fillHeavy(s.Momentum, 5)
	cfg := Config{Params: p, Uplink: d, Downlink: d}
	commit := func() {
		if _, err := Merge(s, residual, cfg, updates, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
	commit() // the memory is there from here on
	start := processSeconds(b)
	for b.Loop() {
		commit()
	}
	b.ReportMetric((processSeconds(b)-start)/float64(b.N)/float64(d.Len())*1e9, "cpu-s/Gparam")
	b.ReportMetric(0, "ns/op")
}

// fillHeavy draws heavy-tailed numbers.
func fillHeavy(x []float32, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range x {
		u := float32(int32(r.Uint32())) * 0x1p-31
		x[i] = u * u * u
	}
}
