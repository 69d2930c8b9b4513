// Package promtest runs a real Prometheus for tests: it scrapes given targets and
// answers the dashboards' queries.
//
// It must not know who the targets are.
package promtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"girassol.dev/operator/dashboards"
)

// patience bounds every wait; it is never reached when all is well.
const patience = time.Minute

// Interval between two scrapes.
const Interval = time.Second

// Server is a running Prometheus.
type Server struct {
	url string
	log string
}

// Missing says why there is no Prometheus; empty if there is one.
func Missing() string {
	if _, err := exec.LookPath("prometheus"); err != nil {
		return "no prometheus: install the package prometheus to run the dashboards' queries"
	}
	return ""
}

// Start scrapes the targets, each host:port with /metrics, until the test ends.
// Without the prometheus binary the test is skipped.
func Start(t testing.TB, targets ...string) *Server {
	t.Helper()
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	dir := t.TempDir()
	var list []string
	for _, target := range targets {
		list = append(list, strconv.Quote(target))
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: %s, scrape_timeout: %s}\nscrape_configs:\n- job_name: girassol\n  static_configs: [{targets: [%s]}]\n", Interval, Interval, strings.Join(list, ", "))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := &Server{url: "http://" + address, log: filepath.Join(dir, "log")}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
	})
	s.untilReady(t)
	return s
}

func (s *Server) untilReady(t testing.TB) {
	t.Helper()
	asker := http.Client{Timeout: 5 * time.Second}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if r, err := asker.Get(s.url + "/-/ready"); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			b, _ := os.ReadFile(s.log)
			t.Fatalf("Prometheus is not ready within %s:\n%s", patience, b)
		}
	}
}

// Empty lists the panels' queries that gave no value between two times, with
// panel and dashboard; an error for a query that Prometheus refuses. Queries for
// which skip is true are left out.
func (s *Server) Empty(from, to time.Time, skip func(expr string) bool) ([]string, error) {
	var empty []string
	for _, d := range dashboards.All() {
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				for _, q := range p.Queries {
					if skip != nil && skip(q.Expr) {
						continue
					}
					n, err := s.Values(Expand(q.Expr), from, to)
					if err != nil {
						return nil, fmt.Errorf("%s, panel %q: %w", d.Title, p.Title, err)
					}
					if n == 0 {
						empty = append(empty, fmt.Sprintf("%s, panel %q: %s", d.Title, p.Title, q.Expr))
					}
				}
			}
		}
	}
	return empty, nil
}

// Expand puts what Grafana would in place of its variables: everything, and a
// rate over eight scrapes.
func Expand(expr string) string {
	return strings.NewReplacer("$federation", ".*", "$site", ".*", "$__rate_interval", (8 * Interval).String()).Replace(expr)
}

// Values is how many finite values a query gave between two times.
func (s *Server) Values(expr string, from, to time.Time) (int, error) {
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	form := url.Values{"query": {expr}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {"1"}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/api/v1/query_range", strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Values [][2]any }
		}
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return 0, fmt.Errorf("%s: %w", expr, err)
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: Prometheus says %s", expr, answer.Error)
	}
	n := 0
	for _, series := range answer.Data.Result {
		for _, v := range series.Values {
			text, _ := v[1].(string)
			if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
				n++
			}
		}
	}
	return n, nil
}
