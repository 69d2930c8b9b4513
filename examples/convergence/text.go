package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/trainer/transformer"
)

// kind of text in a Go source tree.
type kind struct {
	dirs   string // comma-separated, below src
	suffix string
}

// kinds are neighbours where they are alike: few sites get runs of them.
var kinds = [16]kind{
	{"cmd/go/testdata/script", ".txt"},
	{"cmd/compile/internal/ssa", ".rules"},
	{"", ".s"},
	{"syscall,internal/syscall", ".go"},
	{"runtime", ".go"},
	{"cmd/compile", ".go"},
	{"cmd/link,cmd/internal/obj", ".go"},
	{"math,simd", ".go"},
	{"crypto", ".go"},
	{"encoding,debug", ".go"},
	{"net", ".go"},
	{"os,io,internal/poll,path", ".go"},
	{"go", ".go"},
	{"cmd/go", ".go"},
	{"text,html,regexp,strings,strconv,unicode", ".go"},
	{"net/http,encoding/json,fmt,time", "_test.go"},
}

const (
	kindBytes    = 400 << 10
	heldOutBytes = 24 << 10
	maxTextFile  = 64 << 10
	// evaluatedTokens of the held-out text, spread over all kinds.
	evaluatedTokens = 32 << 10
)

// text is the built-in transformer on Go's own sources.
type text struct {
	cfg     transformer.Config
	kinds   [][]byte
	heldOut *transformer.Corpus
	l       *tensor.Layout
}

func loadText() (*text, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("text: go env GOROOT: %w", err)
	}
	src := filepath.Join(string(bytes.TrimSpace(out)), "src")
	var all [][]byte
	var heldOut []byte
	for _, k := range kinds {
		train, held, err := k.read(src)
		if err != nil {
			return nil, fmt.Errorf("text: %w", err)
		}
		all = append(all, train)
		heldOut = append(heldOut, held...)
	}
	return newText(transformer.DefaultConfig(), all, heldOut)
}

func newText(cfg transformer.Config, kinds [][]byte, heldOut []byte) (*text, error) {
	l, err := cfg.Layout()
	return &text{cfg: cfg, kinds: kinds, heldOut: transformer.NewCorpus(heldOut), l: l}, err
}

// read takes files in an order that depends on their names only, those held out
// first.
func (k kind) read(src string) (train, held []byte, err error) {
	type file struct {
		path string
		key  uint64
	}
	var files []file
	for _, dir := range strings.Split(k.dirs, ",") {
		err := filepath.WalkDir(filepath.Join(src, dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := d.Name()
			if d.IsDir() {
				if name == "vendor" || name == "testdata" && !strings.HasSuffix(k.dirs, "script") {
					return filepath.SkipDir
				}
				return nil
			}
			if !strings.HasSuffix(name, k.suffix) || k.suffix == ".go" && strings.HasSuffix(name, "_test.go") {
				return nil
			}
			if info, err := d.Info(); err != nil || info.Size() > maxTextFile {
				return err
			}
			rel, err := filepath.Rel(src, p)
			if err != nil {
				return err
			}
			h := fnv.New64a()
			_, _ = h.Write([]byte(filepath.ToSlash(rel))) // never fails
			files = append(files, file{p, h.Sum64()})
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmpKeys(a.key, b.key) })
	for _, f := range files {
		if len(train) >= kindBytes {
			break
		}
		b, err := os.ReadFile(f.path)
		if err != nil {
			return nil, nil, err
		}
		if len(held) < heldOutBytes {
			held = append(held, b[:min(len(b), heldOutBytes-len(held))]...)
			continue
		}
		train = append(train, b[:min(len(b), kindBytes-len(train))]...)
	}
	if len(train) < kindBytes/4 {
		return nil, nil, fmt.Errorf("%s*%s below %s has %d bytes, want %d: is it a whole Go source tree?", k.dirs, k.suffix, src, len(train), kindBytes/4)
	}
	return train, held, nil
}

func cmpKeys(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (t *text) layout() *tensor.Layout { return t.l }

func (t *text) initial(seed uint64) []float32 {
	cfg := t.cfg
	cfg.InitSeed = seed
	m, err := transformer.NewModel(cfg)
	if err != nil {
		panic(err) // the layout was made of the same configuration
	}
	return m.Weights()
}

// learners all draw from everything, or each from its run of kinds.
func (t *text) learners(s setting) ([]learner, error) {
	everything := bytes.Join(t.kinds, nil)
	cfg := t.cfg
	cfg.TotalSamples = uint64(s.work() * float64(s.Steps*cfg.TokensPerStep()))
	out := make([]learner, s.Sites)
	for i := range out {
		own := everything
		if s.Split == nonIID {
			n := len(t.kinds)
			if s.Sites > n {
				return nil, fmt.Errorf("text: %d sites, there are %d kinds of text", s.Sites, n)
			}
			own = bytes.Join(t.kinds[i*n/s.Sites:(i+1)*n/s.Sites], nil)
		}
		trainer, err := transformer.NewTrainer(cfg, transformer.NewCorpus(own), s.Seed*1000+uint64(i))
		if err != nil {
			return nil, err
		}
		out[i] = textLearner{trainer}
	}
	return out, nil
}

type textLearner struct{ t *transformer.Trainer }

func (l textLearner) train(end, start []float32, steps int, committed uint64) (uint64, error) {
	if err := l.t.LoadWeights(start); err != nil {
		return 0, err
	}
	before := l.t.Tokens()
	l.t.SetPosition(committed)
	for range steps {
		l.t.Step()
	}
	copy(end, l.t.Weights())
	return l.t.Tokens() - before, nil
}

func (t *text) evaluator() (evaluator, error) {
	cfg := t.cfg
	m, err := transformer.NewModel(cfg)
	return &textEvaluator{m, t.heldOut}, err
}

type textEvaluator struct {
	m    *transformer.Model
	data *transformer.Corpus
}

func (e *textEvaluator) evaluate(theta []float32) (score, error) {
	if err := e.m.LoadWeights(theta); err != nil {
		return score{}, err
	}
	loss, _, err := transformer.Evaluate(e.m, e.data, evaluatedTokens)
	return score{Loss: loss}, err
}
