package app

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"girassol.dev/siteagent/trainer"
)

func TestTrainerFlagsThatCannotWorkAreRefusedWithTheWayOut(t *testing.T) {
	dir := t.TempDir()
	base := []string{"--coordinator", "127.0.0.1:1", "--federation", "lm", "--site", "porto", "--data", filepath.Join(dir, "d")}
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no command for GPUs":   {[]string{"--gpus", "0"}, `behind "--"`},
		"no command for memory": {[]string{"--trainer-memory-limit", "1Gi"}, `behind "--"`},
		"memory":                {[]string{"--trainer-memory-limit", "lots", "--", "true"}, "such as 24Gi"},
		"GPUs":                  {[]string{"--gpus", "x", "--", "true"}, "--gpus"},
		"grace":                 {[]string{"--trainer-grace", "1ms"}, "--trainer-grace"},
		"stall":                 {[]string{"--trainer-stall", "0"}, "--trainer-stall"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := execute(append(append([]string{}, base...), tc.args...)...); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
}

func TestGPUsOfTheFlagTakeThePlaceOfTheEnvironmentAndOtherwiseItStays(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	var log strings.Builder
	for _, tc := range []struct {
		gpus []string
		want string
		says bool
	}{
		{nil, "", false},
		{[]string{"7"}, "CUDA_VISIBLE_DEVICES=7 CUDA_DEVICE_ORDER=PCI_BUS_ID", false},
		{[]string{"1", "3"}, "CUDA_VISIBLE_DEVICES=1,3 CUDA_DEVICE_ORDER=PCI_BUS_ID", true},
	} {
		log.Reset()
		var s trainer.SupervisorOptions
		o := trainerOptions{gpus: tc.gpus}
		if err := o.supervise(&s, "nvidia", slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.Env, " "); got != tc.want || strings.Contains(log.String(), "variable=CUDA_VISIBLE_DEVICES was=7") != tc.says {
			t.Errorf("%v: %q, log %q", tc.gpus, got, log.String())
		}
	}
	t.Setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
	var s trainer.SupervisorOptions
	o := trainerOptions{gpus: []string{"0"}}
	if err := o.supervise(&s, "nvidia", slog.New(slog.DiscardHandler)); err != nil || strings.Join(s.Env, " ") != "CUDA_VISIBLE_DEVICES=0" {
		t.Errorf("%v, %v: an order that was chosen is not kept", s.Env, err)
	}
}

func TestAmountsOfMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, "1024": 1024, "24Gi": 24 << 30, "1.5Gi": 3 << 29, "800M": 800e6, "2k": 2000, "1Ti": 1 << 40,
		"-1": -1, "0": -1, "Gi": -1, "5X": -1, "1GiB": -1, "1iG": -1, "NaN": -1, "1e300": -1, "0.1": -1, "Inf": -1,
	} {
		got, err := parseBytes(text)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestACrashLoopIsNamedAlsoBetweenTheCrashes(t *testing.T) {
	looping := trainer.State{Phase: trainer.Running, Failures: 3, Reason: "crash loop: ended 3 times in a row, last: exit status 1: no data", Tail: []string{"loading"}}
	if got := fault(looping); !strings.HasPrefix(got, "crash loop: ended 3 times") || !strings.HasSuffix(got, ": loading") {
		t.Errorf("%q", got)
	}
	for _, s := range []trainer.State{{Phase: trainer.Running, Failures: 1, Reason: "once"}, {Phase: trainer.Stopped}} {
		if got := fault(s); got != "" {
			t.Errorf("%+v: %q", s, got)
		}
	}
}
