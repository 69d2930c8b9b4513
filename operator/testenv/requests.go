package testenv

import (
	"bufio"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// Requests are counts of requests that an API server served, by verb and
// resource, such as "APPLY sites/status".
type Requests map[string]float64

var (
	requestTotal = regexp.MustCompile(`^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)
	metricLabel  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// Requests served since the start, of the kinds that an operator reads and writes;
// what the control plane does by itself (leases, flow schemas, endpoints) is not
// counted.
func (e *Environment) Requests(t testing.TB) Requests {
	t.Helper()
	c, err := rest.HTTPClientFor(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Get(strings.TrimSuffix(e.Config.Host, "/") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the API server's metrics: %s", response.Status)
	}
	out := Requests{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		what, n := request(lines.Text())
		if what != "" {
			out[what] += n
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// request reads one line of metrics; what is empty if it is of no interest.
func request(line string) (what string, n float64) {
	m := requestTotal.FindStringSubmatch(line)
	if m == nil {
		return "", 0
	}
	labels := map[string]string{}
	for _, l := range metricLabel.FindAllStringSubmatch(m[1], -1) {
		labels[l[1]] = l[2]
	}
	switch labels["resource"] {
	case "federations", "sites", "statefulsets", "daemonsets", "deployments", "services", "configmaps", "serviceaccounts", "secrets",
		"persistentvolumeclaims", "poddisruptionbudgets", "networkpolicies", "nodes", "pods", "events":
	default:
		return "", 0
	}
	n, err := strconv.ParseFloat(m[2], 64)
	if err != nil {
		return "", 0
	}
	what = labels["verb"] + " " + labels["resource"]
	if labels["subresource"] != "" {
		what += "/" + labels["subresource"]
	}
	return what, n
}

// Since are the requests that came after before.
func (r Requests) Since(before Requests) Requests {
	out := Requests{}
	for what, n := range r {
		if n != before[what] {
			out[what] = n - before[what]
		}
	}
	return out
}

// Writes is the number of those that may change something.
func (r Requests) Writes() float64 {
	return r.sum("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
}

// Reads is the number of those that fetch; watches are none.
func (r Requests) Reads() float64 { return r.sum("GET", "LIST") }

func (r Requests) sum(verbs ...string) (n float64) {
	for what, count := range r {
		verb, _, _ := strings.Cut(what, " ")
		if slices.Contains(verbs, verb) {
			n += count
		}
	}
	return n
}
