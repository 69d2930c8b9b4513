package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// syntheticLayers of the synthetic model: with eight the layout has 51 tensors.
const syntheticLayers = 8

// syntheticLayout is shaped like a transformer of about four fifths in its
// layers and one fifth in its embedding, with exactly n parameters.
func syntheticLayout(n int) (*tensor.Layout, error) {
	d := int(math.Sqrt(0.8 * float64(n) / (12 * syntheticLayers)))
	if d >= 128 {
		d = d / 64 * 64
	}
	if d < 8 {
		return nil, fmt.Errorf("--params: %d are too few for a model of %d layers", n, syntheticLayers)
	}
	var specs []tensor.Spec
	left := n
	add := func(name string, shape ...int) {
		s := tensor.Spec{Name: name, DType: tensor.F32, Role: tensor.Parameter}
		size := 1
		for _, v := range shape {
			s.Shape = append(s.Shape, int64(v))
			size *= v
		}
		specs = append(specs, s)
		left -= size
	}
	for i := range syntheticLayers {
		p := fmt.Sprintf("blocks.%d.", i)
		add(p+"ln1.weight", d)
		add(p+"attn.qkv.weight", 3*d, d)
		add(p+"attn.proj.weight", d, d)
		add(p+"ln2.weight", d)
		add(p+"mlp.up.weight", 4*d, d)
		add(p+"mlp.down.weight", d, 4*d)
	}
	add("ln_f.weight", d)
	add("embed.weight", left/d, d)
	if left > 0 {
		add("head.bias", left)
	}
	return tensor.NewLayout(specs)
}

// heavyTailed draws like gradients are spread: Student's t with three degrees of
// freedom, a scale of its own per run of elements, and neighbours that resemble
// each other.
type heavyTailed struct {
	rng  *rand.Rand
	last float64
	// run and scale of the elements at hand.
	run   int
	scale float64
}

func newHeavyTailed(seed uint64) *heavyTailed {
	return &heavyTailed{rng: rand.New(rand.NewPCG(seed, 0x62656e6368))}
}

func (h *heavyTailed) fill(dst []float32, scale float64) {
	for i := range dst {
		if h.run == 0 {
			h.run = 64 + h.rng.IntN(4096)
			h.scale = math.Exp(h.rng.NormFloat64())
		}
		h.run--
		// -log of three uniforms' product is a chi square of six degrees, over two.
		u := (1 - h.rng.Float64()) * (1 - h.rng.Float64()) * (1 - h.rng.Float64())
		t := h.rng.NormFloat64() / math.Sqrt(-2*math.Log(u)/6)
		h.last = 0.5*h.last + t
		dst[i] = float32(scale * h.scale * h.last)
	}
}

// writeModel writes first weights of the layout.
func writeModel(path string, l *tensor.Layout) error {
	st := tensor.NewState(l)
	defer st.Close()
	newHeavyTailed(1).fill(st.Theta, 0.02)
	return tensor.WriteFileAtomic(path, func(w io.Writer) error { return tensor.SaveState(w, st, false) })
}

// writePayload writes one update under the uplink's encoding, block by block: no
// vector of the model's size is held.
func writePayload(path string, l *tensor.Layout, p algorithm.Parameters) (size int64, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	d := codec.NewDomain(l, p.Uplink.Transform)
	enc := codec.NewEncoder(w, d, p.Uplink)
	values := newHeavyTailed(2)
	x := make([]float32, min(d.Len(), codec.BlockSize))
	for _, b := range d.Blocks() {
		values.fill(x[:b.Len()], 1e-4)
		if err := enc.Block(b, x[:b.Len()], nil); err != nil {
			return 0, err
		}
	}
	if size, err = enc.Close(codec.Aux{Buffers: make([]float32, l.Buffers()), Integers: make([]byte, l.IntegerBytes())}); err != nil {
		return 0, err
	}
	return size, w.Flush()
}

const federationName = "bench"

func siteName(i int) string { return fmt.Sprintf("site-%02d", i) }

// writeFederation writes the coordinator's configuration: all sites always in,
// no signal, and times that no run reaches.
func writeFederation(path, strategy, model string, sites int) error {
	return writeFederationWith(path, strategy, model, sites, func(*v1alpha1.FederationSpec) {})
}

// writeFederationWith changes the specification before it is written.
func writeFederationWith(path, strategy, model string, sites int, change func(*v1alpha1.FederationSpec)) error {
	var docs []byte
	add := func(object any) error {
		b, err := yaml.Marshal(object)
		docs = append(append(docs, b...), "---\n"...)
		return err
	}
	model, err := filepath.Abs(model)
	if err != nil {
		return err
	}
	fed := v1alpha1.Federation{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindFederation},
		ObjectMeta: metav1.ObjectMeta{Name: federationName},
		Spec: v1alpha1.FederationSpec{
			Model:     v1alpha1.ModelSpec{Source: v1alpha1.ModelFromFile, Path: model},
			Algorithm: v1alpha1.AlgorithmSpec{Strategy: algorithm.SpecName(strategy)},
			Rounds:    v1alpha1.RoundsSpec{MinSites: int32(sites), TrainSeconds: 3600, CollectSeconds: 3600, JoinSeconds: 3600},
			Energy:    v1alpha1.EnergySpec{Policy: v1alpha1.EnergyIgnore},
		},
	}
	for i := range sites {
		fed.Spec.Sites = append(fed.Spec.Sites, v1alpha1.SiteReference{Name: siteName(i)})
	}
	change(&fed.Spec)
	if err := add(fed); err != nil {
		return err
	}
	for i := range sites {
		err := add(v1alpha1.Site{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSite},
			ObjectMeta: metav1.ObjectMeta{Name: siteName(i)},
		})
		if err != nil {
			return err
		}
	}
	return os.WriteFile(path, docs, 0o600)
}
