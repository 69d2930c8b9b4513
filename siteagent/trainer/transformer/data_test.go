package transformer

import (
	"context"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

func TestSamplesAreTheWindowsOfTheTextInAnotherOrder(t *testing.T) {
	const width = 8
	for _, n := range []int{1, 2, 3, 7, 64, 1000} {
		text := make([]byte, n*width+1+n%width)
		for i := range text {
			text[i] = byte(i % 251)
		}
		c := NewCorpus(text)
		if got := c.Windows(width); got != uint64(n) {
			t.Fatalf("%d bytes have %d windows, want %d", len(text), got, n)
		}
		seen := map[int]bool{}
		inputs, targets := make([]byte, width), make([]byte, width)
		for i := range uint64(n) {
			c.read([]uint64{i}, inputs, targets, width)
			at := int(i%uint64(n)*stride(uint64(n))%uint64(n)) * width
			if !slices.Equal(inputs, text[at:at+width]) || !slices.Equal(targets, text[at+1:at+width+1]) {
				t.Fatalf("sample %d is %v", i, inputs)
			}
			seen[at] = true
			again := make([]byte, width)
			c.read([]uint64{i + uint64(n)}, again, targets, width)
			if !slices.Equal(again, inputs) {
				t.Fatalf("sample %d is not that of %d", i+uint64(n), i)
			}
		}
		if len(seen) != n {
			t.Errorf("%d samples are %d windows", n, len(seen))
		}
	}
}

func TestAStepOnSamplesDependsOnThemAlone(t *testing.T) {
	c := small()
	a, b := newTrainer(t, c, 1), newTrainer(t, c, 2)
	for _, samples := range [][]uint64{{0, 1, 2, 3}, {9}, {4, 5}} {
		la, lb := a.StepOn(samples), b.StepOn(samples)
		if la != lb || math.IsNaN(la) {
			t.Fatalf("losses %g and %g", la, lb)
		}
	}
	if !slices.Equal(a.Weights(), b.Weights()) || a.Tokens() != uint64(7*c.Context) {
		t.Errorf("weights differ, or %d tokens", a.Tokens())
	}
}

func TestATaskWithDataUsesItInOrderAndEndsWithIt(t *testing.T) {
	c := small()
	s := newSite(t, c)
	p := &Process{Trainer: newTrainer(t, c, 1), WorkDir: s.work}
	p.base = p.Trainer.settings
	task := s.task("a", trainerv1.Train, 0, time.Hour)
	task.Data = []trainerv1.DataRange{{Begin: 3, End: 5}, {Begin: 5, End: 9}, {Begin: 0, End: 2*uint64(c.Batch) - 5, Pass: 1}}
	report := func(trainerv1.Progress) trainerv1.Directive { return trainerv1.Directive{Action: trainerv1.Continue} }
	res, err := p.handle(context.Background(), task, report)
	if err != nil {
		t.Fatal(err)
	}
	want := []trainerv1.DataRange{{Begin: 3, End: 9}, {Begin: 0, End: 2*uint64(c.Batch) - 5, Pass: 1}}
	if total := 6 + 2*c.Batch - 5; res.Steps != 3 || res.Samples != uint64(total*c.Context) || !reflect.DeepEqual(res.Consumed, want) {
		t.Errorf("%+v, want %v", res, want)
	}
	task.MaxSteps = 1
	if res, err = p.handle(context.Background(), task, report); err != nil || res.Steps != 1 || leaseSize(res.Consumed) != c.Batch {
		t.Errorf("%+v, %v", res, err)
	}
	task.Data = nil
	if res, err = p.handle(context.Background(), task, report); err != nil || res.Steps != 1 || res.Consumed != nil {
		t.Errorf("without data: %+v, %v", res, err)
	}
}

func leaseSize(rs []trainerv1.DataRange) (n int) {
	for _, r := range rs {
		n += int(r.End - r.Begin)
	}
	return n
}
