package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

func TestMalformedBodiesAreRefusedAndChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		end := r.start(context.Background(), r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		path := r.weights("r")
		for name, body := range map[string]string{
			"empty":             ``,
			"no object":         `7`,
			"null":              `null`,
			"unknown field":     `{"steps":1,"samples":1,"extra":1}`,
			"missing field":     `{"steps":1}`,
			"null field":        `{"steps":null,"samples":1}`,
			"negative":          `{"steps":-1,"samples":1}`,
			"fraction":          `{"steps":1.5,"samples":1}`,
			"too big a number":  `{"steps":18446744073709551616,"samples":1}`,
			"NaN loss":          `{"steps":1,"samples":1,"loss":NaN}`,
			"infinite loss":     `{"steps":1,"samples":1,"loss":1e999}`,
			"string for number": `{"steps":"1","samples":1}`,
			"two values":        `{"steps":1,"samples":1}{}`,
			"garbage behind":    `{"steps":1,"samples":1}x`,
			"truncated":         `{"steps":1,"samples":1`,
		} {
			for _, what := range []string{"progress", "result"} {
				if w := r.call("POST", "/v1/tasks/a/"+what, body); w.Code != 400 {
					t.Errorf("%s as %s: %d %s", name, what, w.Code, w.Body)
				}
			}
		}
		for name, body := range map[string]string{
			"no path":          `{"steps":1,"samples":1}`,
			"no samples":       fmt.Sprintf(`{"path":%q,"steps":1,"samples":0}`, path),
			"a metric unnamed": fmt.Sprintf(`{"path":%q,"steps":1,"samples":1,"metrics":{"":1}}`, path),
			"many metrics":     fmt.Sprintf(`{"path":%q,"steps":1,"samples":1,"metrics":%s}`, path, manyMetrics(t)),
		} {
			if w := r.call("POST", "/v1/tasks/a/result", body); w.Code != 400 {
				t.Errorf("result with %s: %d %s", name, w.Code, w.Body)
			}
		}
		big := `{"reason":"` + strings.Repeat("x", MaxBody) + `"}`
		r.want(413, "POST", "/v1/tasks/a/failure", big)
		r.want(204, "POST", "/v1/tasks/a/result", fmt.Sprintf(`{"path":%q,"steps":1,"samples":1}`, path))
		if e := <-end; e.err != nil {
			t.Error(e.err)
		}
	})
}

func manyMetrics(t *testing.T) string {
	m := map[string]float64{}
	for i := range maxMetrics + 1 {
		m[fmt.Sprint("m", i)] = 1
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestZeroStepsAndEvaluationsNeedNoFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		end := r.start(context.Background(), r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		r.want(204, "POST", "/v1/tasks/a/result", `{"steps":0,"samples":0}`)
		if e := <-end; e.err != nil || e.Result.Path != "" {
			t.Errorf("%+v", e)
		}
		task := r.task("b", time.Hour)
		task.Kind, task.ResultPath = trainerv1.Evaluate, ""
		end = r.start(context.Background(), task, nil)
		r.want(200, "GET", "/v1/task", "")
		r.want(400, "POST", "/v1/tasks/b/result", fmt.Sprintf(`{"path":%q,"steps":1,"samples":1}`, r.weights("r")))
		r.want(204, "POST", "/v1/tasks/b/result", `{"steps":1,"samples":64,"loss":2.5}`)
		if e := <-end; e.err != nil || *e.Result.Loss != 2.5 {
			t.Errorf("%+v", e)
		}
	})
}

func TestWrongMethodsAndPathsAreProblems(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		status       int
		method, path string
	}{
		{405, "POST", "/v1/task"}, {405, "HEAD", "/v1/task"}, {405, "GET", "/v1/tasks/a/progress"}, {405, "PUT", "/v1/tasks/a/result"},
		{405, "DELETE", "/v1/tasks/a/failure"}, {405, "POST", "/v1/model"}, {404, "GET", "/"}, {404, "GET", "/v2/task"}, {404, "POST", "/v1/tasks/a/dance"},
	} {
		body := r.want(c.status, c.method, c.path, "")
		if c.status == 405 && r.call(c.method, c.path, "").Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow header with %s", c.method, c.path, body)
		}
	}
}

func TestPathsMustLeadToRegularFilesInTheWorkFolder(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	work, outside := filepath.Join(root, "work"), filepath.Join(root, "outside")
	for _, d := range []string{filepath.Join(work, "sub"), outside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(work, "sub", "w"), filepath.Join(outside, "secret"), filepath.Join(root, "work-alike")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		if err := os.Symlink(to, filepath.Join(work, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(filepath.Join(outside, "secret"), "out")
	link("../outside", "outdir")
	link("sub/w", "in")
	link("loop", "loop")
	if err := syscall.Mkfifo(filepath.Join(work, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(work, "sub", "w")
	for _, ok := range []string{want, "sub/w", filepath.Join(work, "in"), filepath.Join(work, "sub", "..", "sub", "w")} {
		if got, err := inside(work, ok); err != nil || got != want {
			t.Errorf("%s: %q, %v", ok, got, err)
		}
	}
	for _, bad := range []string{
		"", "missing", "sub", work, "fifo", "loop", "out", "outdir/secret", "../outside/secret",
		filepath.Join(outside, "secret"), filepath.Join(work, "..", "outside", "secret"), filepath.Join(root, "work-alike"), "/dev/null", "a\x00b",
	} {
		if got, err := inside(work, bad); err == nil {
			t.Errorf("%q was taken as %s", bad, got)
		}
	}
}

func TestResultSwappedForALinkAfterwardsIsNotOpened(t *testing.T) {
	r := newRig(t)
	path := r.weights("r")
	o := Outcome{Result: trainerv1.Result{Path: path}, work: r.s.WorkDir()}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path); err != nil {
		t.Fatal(err)
	}
	if f, err := o.Open(); err == nil {
		_ = f.Close()
		t.Error("the link was followed out of the work folder")
	}
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"path":"x","steps":1,"samples":2,"loss":1.5,"metrics":{"a":1}}`))
	f.Add([]byte(`{"steps":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var res trainerv1.Result
		if parse(b, &res) != nil {
			return
		}
		again, err := json.Marshal(res)
		if err != nil {
			t.Fatalf("what was parsed cannot be written: %v", err)
		}
		if err := parse(again, &trainerv1.Result{}); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
