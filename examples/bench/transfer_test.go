package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// A small model: the figures mean nothing, but that each phase carries the bytes it
// should and is set beside bare connections that carried some.
func TestTransfersAreMeasuredBesideTheLimit(t *testing.T) {
	needsProc(t)
	results := filepath.Join(t.TempDir(), "bench", "results.json")
	r := bench[transferReport](t, "transfer", "--params", "300000", "--sites", "1,2", "--rounds", "1", "--json", results)
	if len(r.Runs) != 8 || r.Memmove <= 0 || r.Disk <= 0 {
		t.Fatalf("%d runs, memmove %g", len(r.Runs), r.Memmove)
	}
	for _, m := range r.Runs {
		if m.Push.Bytes != int64(m.Sites)*m.UpdateBytes || m.Pull.Bytes != int64(m.Sites)*m.DeltaBytes || m.Merge.Bytes != m.Push.Bytes {
			t.Errorf("%s, %s, %d sites: %+v", m.Algorithm, m.Link, m.Sites, m)
		}
		for _, x := range []transfer{m.Push, m.Merge, m.Pull, m.RawUp, m.RawDown} {
			if x.Bytes <= 0 || x.Wall <= 0 || x.Both < x.Server {
				t.Errorf("%s, %s, %d sites: %+v", m.Algorithm, m.Link, m.Sites, x)
			}
		}
		if m.PushRatio <= 0 || m.PullRatio <= 0 || m.PushMemmove <= 0 || m.MergeMemmove <= 0 || m.PullMemmove <= 0 || m.Peak.HighWater < m.ModelBuffers {
			t.Errorf("%s, %s, %d sites: %+v", m.Algorithm, m.Link, m.Sites, m)
		}
	}
	b, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	var again transferReport
	if err := json.Unmarshal(b, &again); err != nil || len(again.Runs) != 8 {
		t.Errorf("%v, %d runs", err, len(again.Runs))
	}
	var table bytes.Buffer
	if err := again.table(&table); err != nil || bytes.Count(table.Bytes(), []byte("decoupled-momentum")) != 8 {
		t.Errorf("%v:\n%s", err, table.String())
	}
}

func TestTransferOptionsThatCannotWorkAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--params", "0"}, {"--link", "pigeon"}, {"--sites", "0"}} {
		var out, log bytes.Buffer
		if run(append([]string{"transfer"}, args...), &out, &log) == 0 || !bytes.Contains(log.Bytes(), []byte(args[0])) {
			t.Errorf("%v: %s", args, log.String())
		}
	}
}
