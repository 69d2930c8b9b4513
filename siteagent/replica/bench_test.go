package replica

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// BenchmarkRound is a round's share of a member's disk and CPU outside training:
// absorb, encode and keep an update, then apply and keep the commit.
func BenchmarkRound(b *testing.B) {
	const n = 4096
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{n, n}, Role: tensor.Parameter}})
	if err != nil {
		b.Fatal(err)
	}
	params, err := algorithm.Defaults(algorithm.DecoupledMomentum)
	if err != nil {
		b.Fatal(err)
	}
	r, err := Open(b.TempDir(), "lm", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	st := tensor.NewState(l)
	defer st.Close()
	path := filepath.Join(b.TempDir(), "state")
	save := func(w io.Writer) error { return tensor.SaveState(w, st, true) }
	if err := tensor.WriteFileAtomic(path, save); err != nil {
		b.Fatal(err)
	}
	if err := r.Install(benchManifest(st, params, 0), path); err != nil {
		b.Fatal(err)
	}
	start, end := make([]float32, n*n), make([]float32, n*n)
	for i := range end {
		end[i] = float32(i%977) / 977
	}
	var bytes int64
	for b.Loop() {
		version, _, _ := r.Held()
		if _, err := r.Prepare(params.Uplink.Transform, nil, true); err != nil {
			b.Fatal(err)
		}
		u, err := r.Stage(Update{UpdateID: "u", Round: version + 1, BaseVersion: version, Encoding: params.Uplink}, Work{Start: start, End: end})
		if err != nil {
			b.Fatal(err)
		}
		bytes = u.Bytes
		b.StopTimer()
		delta := filepath.Join(b.TempDir(), "delta")
		f, err := os.Create(delta)
		if err != nil {
			b.Fatal(err)
		}
		d := codec.NewDomain(l, params.Downlink.Transform)
		if _, err := codec.Encode(f, d, params.Downlink, r.residual.Vector(), codec.Aux{}); err != nil {
			b.Fatal(err)
		}
		_ = f.Close()
		err = withPayload(delta, d, params.Downlink, func(d *codec.Domain, p *codec.Payload) error { return replica.Step(st, d, params, p) })
		if err != nil {
			b.Fatal(err)
		}
		m := benchManifest(st, params, version+1)
		m.UpdateIDs = []string{"u"}
		b.StartTimer()
		if err := r.Apply(m, delta); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes), "update-bytes")
}

func benchManifest(st *tensor.State, params algorithm.Parameters, version uint64) Manifest {
	d := st.Digest()
	return Manifest{Version: version, Round: version, Digest: d, Algorithm: params}
}
