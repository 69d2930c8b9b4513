package main

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"girassol.dev/siteagent/trainer/transformer"
)

// noise is images of random pixels with random labels, to be learned by heart only.
func noise(t *testing.T, n int) *digits {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	images := make([]image, n)
	for i := range images {
		images[i].label = uint8(r.IntN(classes))
		for p := range pixels {
			if r.IntN(20) == 0 {
				images[i].at = append(images[i].at, uint16(p))
				images[i].v = append(images[i].v, r.Float32())
			}
		}
	}
	d, err := newDigits(images, images[:min(n, 256)])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustVariant(t *testing.T, s string) variant {
	t.Helper()
	v, err := parseVariant(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustRun(t *testing.T, task task, s setting, name string) result {
	t.Helper()
	r, err := run(t.Context(), task, s, mustVariant(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEqualRunsAreEqual(t *testing.T) {
	d := noise(t, 1000)
	for _, churn := range []string{noChurn, half, spells} {
		s := setting{mnistTask, nonIID, churn, 3, 2, 6, 5}
		a, b := mustRun(t, d, s, "dm"), mustRun(t, d, s, "dm")
		if !reflect.DeepEqual(a, b) {
			t.Errorf("churn %s: %+v and %+v", churn, a, b)
		}
		s.Seed++
		if c := mustRun(t, d, s, "dm"); c.Loss == a.Loss {
			t.Errorf("churn %s: another seed gives the same loss %g", churn, c.Loss)
		}
	}
}

// Sending everything in fp32 is dense DiLoCo, whatever the transform and rho.
func TestSendingEverythingIsDiLoCo(t *testing.T) {
	d := noise(t, 1000)
	for _, sites := range []int{1, 3} {
		s := setting{mnistTask, iid, noChurn, sites, 3, 8, 1}
		dense := mustRun(t, d, s, "diloco")
		for _, name := range []string{"dm:up=1,down=1,values=fp32,eta=.7,mu=.9", "dm:up=1,down=1,values=fp32,eta=.7,mu=.9,rho=1"} {
			all := mustRun(t, d, s, name)
			if math.Abs(all.Loss-dense.Loss) > 1e-3*dense.Loss {
				t.Errorf("%d sites: %s has loss %g, DiLoCo %g", sites, name, all.Loss, dense.Loss)
			}
			if all.SiteResidual > 1e-6 || all.CoordinatorResidual > 1e-6 {
				t.Errorf("%d sites: %s holds back %g and %g", sites, name, all.SiteResidual, all.CoordinatorResidual)
			}
		}
	}
}

// The published algorithm diverges from eight sites on.
func TestSixteenSitesDoNotDivergeOnRandomData(t *testing.T) {
	if testing.Short() {
		t.Skip("200 rounds of 16 sites take a minute or two under the race detector")
	}
	d := noise(t, 16*mlpBatch)
	for _, split := range []string{iid, nonIID} {
		s := setting{mnistTask, split, noChurn, 16, 1, 200, 1}
		r := mustRun(t, d, s, "dm")
		t.Logf("%s: loss %.3f, agreement %v, R %.1f and u %.1f of an update", split, r.Loss, r.Agreement, r.CoordinatorResidual, r.SiteResidual)
		if r.Diverged != "" || !(r.Loss < 4) || !(r.CoordinatorResidual < 20) || !(r.SiteResidual < 100) {
			t.Errorf("%s: %s, loss %g, R %g, u %g", split, r.Diverged, r.Loss, r.CoordinatorResidual, r.SiteResidual)
		}
	}
}

func TestBytesAreThoseOfAllSites(t *testing.T) {
	d := noise(t, 1000)
	s := setting{mnistTask, iid, noChurn, 4, 1, 5, 1}
	r := mustRun(t, d, s, "fedavg")
	if r.Updates != 20 || r.Samples != 20*mlpBatch {
		t.Errorf("%d updates of %d samples", r.Updates, r.Samples)
	}
	if r.Ratio > 1 || r.Ratio < 0.99 {
		t.Errorf("dense fp32 is %g times dense fp32", r.Ratio)
	}
	dense := 4 * float64(d.l.Parameters())
	if per := r.BytesUp / 5; per < dense || per > dense+1000 {
		t.Errorf("%g bytes up a round, the model has %g", per, dense)
	}
	// A site that was away pulls what it missed: no less than what all pull.
	s.Churn = half
	if r := mustRun(t, d, s, "fedavg"); r.BytesDown < r.BytesUp {
		t.Errorf("%g down, %g up: nobody has caught up", r.BytesDown, r.BytesUp)
	}
}

func TestTextIsLearned(t *testing.T) {
	cfg := transformer.DefaultConfig()
	cfg.Dim, cfg.Layers, cfg.Context, cfg.Batch = 16, 1, 16, 2
	kind := make([]byte, 1<<10)
	for i := range kind {
		kind[i] = "sunflower "[i%10]
	}
	task, err := newText(cfg, [][]byte{kind, kind}, kind)
	if err != nil {
		t.Fatal(err)
	}
	for _, split := range []string{iid, nonIID} {
		r := mustRun(t, task, setting{textTask, split, noChurn, 2, 10, 8, 1}, "dm")
		if r.Curve[len(r.Curve)-1].Loss >= r.Curve[0].Loss {
			t.Errorf("%s: %+v", split, r.Curve)
		}
	}
	if _, err := task.learners(setting{Split: nonIID, Sites: 3}); err == nil {
		t.Error("three sites share two kinds of text")
	}
}
