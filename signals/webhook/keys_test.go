package webhook_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals/webhook"
)

// counter sums a counter's series that have a label of the given value.
func (r *rig) counter(name, label string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func TestKeysMayBeGivenWithoutFiles(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) {
		for i := range c.Senders {
			if c.Senders[i].Name == "meter" {
				c.Senders[i].SecretFiles, c.Senders[i].Secrets = nil, []byte(key('x')+"\n"+key('y')+"\n")
			}
		}
	})
	for fill, status := range map[byte]int{'x': 202, 'y': 202, 'm': 401} {
		b := observed("1", 0)
		got := r.do(r.request(b, func(req *http.Request) { r.sign(req, key(fill), "id"+string(fill), b) }))
		if got.status != status {
			t.Errorf("key %c: %d %+v, want %d", fill, got.status, got.Answer, status)
		}
	}
	for name, s := range map[string]webhook.Sender{
		"no key":        {Name: "a", Sites: []string{"s"}, Secrets: []byte("# none\n")},
		"a short token": {Name: "a", Sites: []string{"s"}, Bearers: []byte("short\n")},
	} {
		if _, err := webhook.New(t.Context(), webhook.Config{Senders: []webhook.Sender{s}}); err == nil || strings.Contains(err.Error(), "short\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysRotateWithoutARestart(t *testing.T) {
	r := newRig(t, nil)
	path := filepath.Join(r.dir, "meter.key")
	try := func(fill byte, status int) {
		t.Helper()
		b := observed("1", 0)
		r.ids++
		got := r.do(r.request(b, func(req *http.Request) { r.sign(req, key(fill), "id"+strings.Repeat("x", r.ids), b) }))
		if got.status != status {
			t.Errorf("key %c: %d %+v, want %d", fill, got.status, got.Answer, status)
		}
	}
	try('m', 202)
	try('n', 401)
	write(t, path, "# new\n"+key('n')+"\n# old\n"+key('m')+"\n")
	try('m', 202)
	try('n', 202)
	write(t, path, key('n'))
	try('m', 401)
	try('n', 202)
	// Replaced by rename, as Kubernetes does it, with the same size and time.
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	next := write(t, path+".new", key('o'))
	if err := os.Chtimes(next, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	try('n', 401)
	try('o', 202)
	// Damage keeps what was good and is counted once.
	write(t, path, "whsec_half")
	try('o', 202)
	try('o', 202)
	if n := r.counter("girassol_webhook_key_errors_total", "meter"); n != 1 {
		t.Errorf("counted %v", n)
	}
	// No key and no file withdraw.
	write(t, path, "# none\n")
	try('o', 401)
	write(t, path, key('o'))
	try('o', 202)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	try('o', 401)
	write(t, path, key('p'))
	try('p', 202)
}

func TestAnOldFileIsReadOnce(t *testing.T) {
	r := newRig(t, nil)
	path := filepath.Join(r.dir, "meter.key")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	r.want(202, signalpush.Stored, observed("1", 0))
	// Written in place with the same size and time: nothing tells that it changed.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(key('z')); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	r.want(202, signalpush.Stored, observed("1", time.Second))
}

func TestTheSourceIsFoundByItsKey(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) {
		c.Senders = append(c.Senders, webhook.Sender{Name: "grid", SecretFiles: []string{write(t, filepath.Join(t.TempDir(), "grid.key"), key('g'))}, Regions: []string{"pt"}})
	})
	b := strings.Replace(observed("1", 0), `"site":"lisboa"`, `"region":"pt"`, 1)
	by := func(fill byte, source string) func(*http.Request) {
		return func(req *http.Request) {
			r.sign(req, key(fill), "same-id", b)
			if source != "" {
				req.Header.Set(signalpush.HeaderSource, source)
			}
		}
	}
	r.want(202, signalpush.Stored, b, by('g', ""))
	// An id is one source's: another source has used it for something else.
	r.want(202, signalpush.Stored, b, by('m', "meter"))
	r.want(200, signalpush.Duplicate, b, by('g', "grid"))
	r.want(401, signalpush.Refused, b, by('g', "meter"))
	r.shows("region pt: marginal 1 gCO2/kWh at 12:00 for 5m0s, ok from grid", "region pt: marginal 1 gCO2/kWh at 12:00 for 5m0s, ok from meter")
	if n := r.counter("girassol_webhook_requests_total", "grid"); n != 2 {
		t.Errorf("%v requests of grid", n)
	}
	if n := r.counter("girassol_webhook_requests_total", "unknown"); n != 1 {
		t.Errorf("%v requests of nobody", n)
	}
}

func TestABearerIsTakenWhereItIsConfigured(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	r := newRig(t, func(c *webhook.Config) {
		c.Senders = append(c.Senders, webhook.Sender{Name: "vtn", BearerFiles: []string{write(t, tokens, "0123456789abcdef\n")}, Sites: []string{"lisboa"}})
	})
	with := func(authorization string) func(*http.Request) {
		return func(req *http.Request) { strip(req); req.Header.Set("Authorization", authorization) }
	}
	b := observed("1", 0)
	r.want(202, signalpush.Stored, b, with("Bearer 0123456789abcdef"))
	r.want(200, signalpush.Duplicate, b, with("bearer 0123456789abcdef")) // without an id, the same is the same
	r.want(401, signalpush.Refused, b, with("Bearer 0123456789abcdeg"))
	r.want(400, signalpush.Refused, b, with("Basic 0123456789abcdef"))
	write(t, tokens, "fedcba9876543210\n")
	r.want(401, signalpush.Refused, b, with("Bearer 0123456789abcdef"))
	r.want(200, signalpush.Duplicate, b, with("Bearer fedcba9876543210"))
}

func TestUnsignedIsForLoopbackOnly(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.Senders[0].Unsigned = true })
	from := func(remote string, more ...string) func(*http.Request) {
		return func(req *http.Request) {
			strip(req)
			req.RemoteAddr = remote
			if len(more) == 2 {
				req.Header.Set(more[0], more[1])
			}
		}
	}
	b := observed("1", 0)
	r.want(202, signalpush.Stored, b, from("127.0.0.1:5000"))
	r.want(200, signalpush.Duplicate, b, from("[::1]:5000"))
	r.want(400, signalpush.Refused, b, from("192.0.2.1:5000"))
	r.want(400, signalpush.Refused, b, from("127.0.0.1:5000", "X-Forwarded-For", "192.0.2.1"))
	r.want(401, signalpush.Refused, b, func(req *http.Request) { req.RemoteAddr = "127.0.0.1:5000"; r.sign(req, key('x'), "a", b) })
}

func TestConfigurationsThatCannotBeMeantAreRefused(t *testing.T) {
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good"), key('a'))
	same := write(t, filepath.Join(dir, "same"), key('b')+"\n"+key('a'))
	empty := write(t, filepath.Join(dir, "empty"), "\n")
	short := write(t, filepath.Join(dir, "short"), "tooshort")
	for name, c := range map[string]struct {
		senders []webhook.Sender
		want    string
	}{
		"no name":         {[]webhook.Sender{{SecretFiles: []string{good}, Sites: []string{"a"}}}, "a name has"},
		"name as a path":  {[]webhook.Sender{{Name: "../a", SecretFiles: []string{good}, Sites: []string{"a"}}}, "a name has"},
		"twice":           {[]webhook.Sender{{Name: "a", SecretFiles: []string{good}, Sites: []string{"a"}}, {Name: "a", SecretFiles: []string{same}, Sites: []string{"a"}}}, "twice"},
		"nothing to say":  {[]webhook.Sender{{Name: "a", SecretFiles: []string{good}}}, "no site"},
		"empty site":      {[]webhook.Sender{{Name: "a", SecretFiles: []string{good}, Sites: []string{""}}}, "without a name"},
		"no secret":       {[]webhook.Sender{{Name: "a", Sites: []string{"a"}}}, "no secret"},
		"no such file":    {[]webhook.Sender{{Name: "a", SecretFiles: []string{good + "x"}, Sites: []string{"a"}}}, "no such file"},
		"a directory":     {[]webhook.Sender{{Name: "a", SecretFiles: []string{dir}, Sites: []string{"a"}}}, "no regular file"},
		"empty file":      {[]webhook.Sender{{Name: "a", SecretFiles: []string{empty}, Sites: []string{"a"}}}, "holds none"},
		"short token":     {[]webhook.Sender{{Name: "a", BearerFiles: []string{short}, Sites: []string{"a"}}}, "at least 16"},
		"a shared secret": {[]webhook.Sender{{Name: "a", SecretFiles: []string{good}, Sites: []string{"a"}}, {Name: "b", SecretFiles: []string{same}, Sites: []string{"a"}}}, "same secret"},
	} {
		if _, err := webhook.New(t.Context(), webhook.Config{Senders: c.senders}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := newRig(t, nil)
	c := r.config()
	c.Registerer = r.registry
	h, err := webhook.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := webhook.New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "metrics") {
		t.Errorf("metrics registered twice: %v", err)
	}
	h.Close()
	if _, err := webhook.New(t.Context(), c); err != nil {
		t.Errorf("metrics are still there: %v", err)
	}
}
