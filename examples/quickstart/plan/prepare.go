package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/examples/quickstart/corpus"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/synthetic"
)

// Federation is the demo's name.
const Federation = "demo"

// The policy and the stated power of every site: a window opens below EnterBelow
// for two points, closes at the first above LeaveAbove; watts are those of the
// field study's four-GPU node, the PUE is a usual one.
const (
	EnterBelowGrams = 100
	LeaveAboveGrams = 110
	TrainingWatts   = 2024
	IdleWatts       = 468
	PUE             = "1.1"
)

// PUEValue is PUE as a number.
func PUEValue() float64 {
	q := resource.MustParse(PUE)
	return q.AsApproximateFloat64()
}

// Run is what is known of a run, kept in run.json.
type Run struct {
	Options Options `json:"options"`
	// Start is the virtual time at which the trace begins, At where the run
	// stopped or was last seen.
	Start time.Time `json:"start"`
	At    time.Time `json:"at"`
	// Complete says that there is nothing to resume.
	Complete bool   `json:"complete"`
	Source   string `json:"source"`
	Sites    []Site `json:"sites"`
	HeldOut  Text   `json:"heldOut"`
	// Elsewhere are regions that serve as baselines only.
	Elsewhere []string `json:"elsewhere,omitempty"`
}

// Site is one site of a run.
type Site struct {
	Name string `json:"name"`
	// Region is its column in the traces.
	Region string `json:"region"`
	Text   Text   `json:"text"`
	// Seed of its trainer's sampling.
	Seed uint64 `json:"seed"`
}

// Text is a list of files.
type Text struct {
	Files  int      `json:"files"`
	Bytes  int64    `json:"bytes"`
	Topics []string `json:"topics,omitempty"`
}

// Folder is the output folder and where things lie in it.
type Folder string

func (f Folder) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

// RunFile is what a stopped run needs to go on.
func (f Folder) RunFile() string { return f.path("run.json") }

// Timeline has every event, a JSON object a line.
func (f Folder) Timeline() string { return f.path("timeline.jsonl") }

// Report is the page with pictures.
func (f Folder) Report() string { return f.path("report.html") }

// Summary has the figures for programs.
func (f Folder) Summary() string { return f.path("summary.json") }

// Model is the trained weights.
func (f Folder) Model() string { return f.path("model.safetensors") }

// Config is the coordinator's.
func (f Folder) Config() string { return f.path("federation.yaml") }

// Marginal is the marginal intensity of all sites.
func (f Folder) Marginal() string { return f.path("traces", "marginal.csv") }

// Average is the average intensity of all sites.
func (f Folder) Average() string { return f.path("traces", "average.csv") }

// Files lists the text of a site.
func (f Folder) Files(site string) string { return f.path("corpus", site+".files") }

// HeldOut lists the text that no site trains on.
func (f Folder) HeldOut() string { return f.path("corpus", "held-out.files") }

// Log is what a process wrote.
func (f Folder) Log(process string) string { return f.path("logs", process+".log") }

// Coordinator is the folder of the commit log.
func (f Folder) Coordinator() string { return f.path("coordinator") }

// SiteData is the folder of a site's replica.
func (f Folder) SiteData(site string) string { return f.path("sites", site, "data") }

// SiteWork is the folder that agent and trainer share.
func (f Folder) SiteWork(site string) string { return f.path("sites", site, "work") }

// scratch is what a completed run no longer needs.
var scratch = []string{"coordinator", "sites", "corpus"}

// owned is everything that the quickstart writes into its folder.
var owned = append([]string{"run.json", "timeline.jsonl", "report.html", "summary.json", "model.safetensors", "federation.yaml", "traces", "logs"}, scratch...)

// Clear makes the folder ready for a new run: a previous demo's files are
// removed, anything else in the folder is a reason to refuse it.
func (f Folder) Clear() error {
	entries, err := os.ReadDir(string(f))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--out: %w", err)
	}
	if len(entries) > 0 {
		if _, err := os.Stat(f.RunFile()); err != nil {
			return fmt.Errorf("--out: %s holds files and no earlier run of the quickstart; name another folder", string(f))
		}
	}
	if err := f.remove(owned); err != nil {
		return err
	}
	for _, dir := range []string{"corpus", "traces", "logs", "coordinator"} {
		if err := os.MkdirAll(f.path(dir), 0o755); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	return nil
}

// RemoveScratch removes stores, work folders and text lists.
func (f Folder) RemoveScratch() error { return f.remove(scratch) }

func (f Folder) remove(names []string) error {
	for _, n := range names {
		if err := os.RemoveAll(f.path(n)); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	return nil
}

// Prepare writes all files of a new run.
func Prepare(f Folder, o Options, goRoot func() (string, error)) (Run, error) {
	run := Run{Options: o, Start: synthetic.Start}
	run.At = run.Start
	c := corpus.Options{Dir: o.Data, Sites: o.Sites, Seed: o.Seed}
	run.Source = o.Data
	if o.Data == "" {
		root, err := goRoot()
		if err != nil {
			return Run{}, fmt.Errorf("no Go source tree to train on (%w); name a folder of text with --data", err)
		}
		c.Dir, c.GoSource = filepath.Join(root, "src"), true
		run.Source = "Go source tree"
		if c.Sites == 0 {
			c.Sites = DefaultSites
		}
	}
	split, err := corpus.Make(c)
	if err != nil {
		if o.Data == "" {
			return Run{}, fmt.Errorf("no Go source tree to train on (%w); name a folder of text with --data", err)
		}
		return Run{}, fmt.Errorf("--data: %w", err)
	}
	run.Options.Sites = len(split.Sites)
	traces, err := synthetic.Generate(synthetic.Config{Seed: o.Seed, Sites: len(split.Sites), Start: run.Start})
	if err != nil {
		return Run{}, err
	}
	for i, share := range split.Sites {
		region := traces.Sites[i].Name
		name := siteName(share.Name, region)
		run.Sites = append(run.Sites, Site{Name: name, Region: region, Text: textOf(share), Seed: o.Seed*1000 + uint64(i) + 1})
	}
	if err := distinct(run.Sites); err != nil {
		return Run{}, err
	}
	for _, r := range traces.Baselines {
		run.Elsewhere = append(run.Elsewhere, r.Name)
	}
	run.HeldOut = textOf(split.HeldOut)
	if err := f.Clear(); err != nil {
		return Run{}, err
	}
	for i, share := range split.Sites {
		if err := writeList(f.Files(run.Sites[i].Name), share.Files); err != nil {
			return Run{}, err
		}
	}
	err = errors.Join(
		writeList(f.HeldOut(), split.HeldOut.Files),
		writeCSV(f.Marginal(), traces.Marginal), writeCSV(f.Average(), traces.Average),
	)
	if err != nil {
		return Run{}, err
	}
	if err := WriteConfig(f, run, o.Rounds); err != nil {
		return Run{}, err
	}
	return run, run.Save(f)
}

var notLabel = regexp.MustCompile(`[^a-z0-9]+`)

// siteName makes a folder's name a DNS label; a site without one takes its
// region's.
func siteName(folder, region string) string {
	name := strings.Trim(notLabel.ReplaceAllString(strings.ToLower(folder), "-"), "-")
	if len(name) > 40 {
		name = strings.TrimRight(name[:40], "-")
	}
	if name == "" {
		return region
	}
	return name
}

func distinct(sites []Site) error {
	seen := map[string]bool{}
	for _, s := range sites {
		if seen[s.Name] {
			return fmt.Errorf("--data: two sub-folders become site %q; rename one", s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

func textOf(s corpus.Share) Text {
	return Text{Files: len(s.Files), Bytes: s.Bytes, Topics: s.Topics}
}

func writeList(path string, files []string) error {
	for _, name := range files {
		if strings.ContainsAny(name, "\n\r") {
			return fmt.Errorf("file name %q breaks lines; rename it", name)
		}
	}
	return os.WriteFile(path, []byte(strings.Join(files, "\n")+"\n"), 0o644)
}

func writeCSV(path string, t *replay.Trace) error {
	return tensor.WriteFileAtomic(path, t.WriteCSV)
}

// WriteConfig writes the Federation and its Sites; a resumed run may ask for
// another number of rounds.
func WriteConfig(f Folder, run Run, rounds int64) error {
	docs, err := documents(f, run, rounds)
	if err != nil {
		return err
	}
	return os.WriteFile(f.Config(), docs, 0o644)
}

// algorithm is the part of a Federation that names the way to merge; the rest is
// the strategy's defaults.
func (o Options) algorithm() (v1alpha1.AlgorithmSpec, error) {
	strategy := algorithm.SpecName(o.Algorithm)
	if strategy == "" {
		return v1alpha1.AlgorithmSpec{}, fmt.Errorf("--algorithm: %q has no strategy", o.Algorithm)
	}
	return v1alpha1.AlgorithmSpec{Strategy: strategy}, nil
}

// Parameters that the run's rounds are merged with; an adaptive outer step is
// fitted to each commit.
func (o Options) Parameters() (algorithm.Parameters, error) {
	spec, err := o.algorithm()
	if err != nil {
		return algorithm.Parameters{}, err
	}
	p, err := algorithm.FromSpec(spec)
	return p.Parameters, err
}

func documents(f Folder, run Run, rounds int64) ([]byte, error) {
	spec, err := run.Options.algorithm()
	if err != nil {
		return nil, err
	}
	t := timingOf(run.Options.Speed)
	enter, leave := int32(EnterBelowGrams), int32(LeaveAboveGrams)
	fed := v1alpha1.Federation{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindFederation},
		ObjectMeta: metav1.ObjectMeta{Name: Federation},
		Spec: v1alpha1.FederationSpec{
			Algorithm: spec,
			Rounds: v1alpha1.RoundsSpec{Total: rounds, MinSites: 1, LocalSteps: LocalSteps, TrainSeconds: t.train, CollectSeconds: t.collect,
				JoinSeconds: t.join},
			Evaluation: v1alpha1.EvaluationSpec{Every: evaluateEvery},
			Energy: v1alpha1.EnergySpec{Policy: v1alpha1.EnergyRequired, EnterBelowGrams: &enter, LeaveAboveGrams: &leave,
				EnterConfirmations: 2, LeaveConfirmations: 1},
			Drain: v1alpha1.DrainSpec{GraceSeconds: t.grace},
		},
	}
	var out bytes.Buffer
	pue := resource.MustParse(PUE)
	marginal, err := filepath.Abs(f.Marginal())
	if err != nil {
		return nil, err
	}
	average, err := filepath.Abs(f.Average())
	if err != nil {
		return nil, err
	}
	for _, s := range run.Sites {
		fed.Spec.Sites = append(fed.Spec.Sites, v1alpha1.SiteReference{Name: s.Name})
	}
	if err := document(&out, fed, &v1alpha1.Federation{}); err != nil {
		return nil, err
	}
	for _, s := range run.Sites {
		site := v1alpha1.Site{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSite},
			ObjectMeta: metav1.ObjectMeta{Name: s.Name},
			Spec: v1alpha1.SiteSpec{
				Grid:  v1alpha1.GridSpec{GridSource: v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: s.Region, TracePath: marginal, AverageTracePath: average}},
				Power: v1alpha1.PowerSpec{TrainingWatts: TrainingWatts, IdleWatts: IdleWatts, PUE: &pue},
			},
		}
		if err := document(&out, site, &v1alpha1.Site{}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// document appends one YAML document and makes sure that it reads back as what
// was written.
func document[T any](out *bytes.Buffer, object T, back *T) error {
	b, err := yaml.Marshal(object)
	if err == nil {
		err = yaml.UnmarshalStrict(b, back)
	}
	if err != nil {
		return fmt.Errorf("federation.yaml: %w", err)
	}
	again, err := yaml.Marshal(back)
	if err != nil || !reflect.DeepEqual(b, again) {
		return fmt.Errorf("federation.yaml: %T does not survive a round trip", object)
	}
	if out.Len() > 0 {
		out.WriteString("---\n")
	}
	out.Write(b)
	return nil
}

// Save keeps the run for --resume.
func (r Run) Save(f Folder) error {
	return tensor.WriteFileAtomic(f.RunFile(), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	})
}

// Load reads the run in a folder, for --resume.
func Load(f Folder) (Run, error) {
	b, err := os.ReadFile(f.RunFile())
	if errors.Is(err, fs.ErrNotExist) {
		return Run{}, fmt.Errorf("--resume: there is no run in %s; start one without --resume", string(f))
	}
	if err != nil {
		return Run{}, fmt.Errorf("--resume: %w", err)
	}
	var r Run
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Run{}, fmt.Errorf("--resume: %s: %w", f.RunFile(), err)
	}
	if len(r.Sites) == 0 || r.Start.IsZero() || r.Options.kept().Check() != nil {
		return Run{}, fmt.Errorf("--resume: %s is not a run's", f.RunFile())
	}
	return r, nil
}

// kept are the options as a file has them, which names no output folder.
func (o Options) kept() Options {
	o.Out = DefaultOut
	return o
}
