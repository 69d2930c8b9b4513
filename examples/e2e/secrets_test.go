package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/enrol"
)

// plant is one secret: the forms in which it would be recognised, and the files
// below the test's folder that may hold it, each readable by its owner alone.
type plant struct {
	name  string
	forms [][]byte
	homes []string // patterns of filepath.Match
}

// found are the forms' occurrences in b.
func (p plant) found(b []byte) bool {
	return slices.ContainsFunc(p.forms, func(form []byte) bool { return bytes.Contains(b, form) })
}

// keyPlant is the private key in a PEM file: its bytes, and its full lines of base64.
func keyPlant(t *testing.T, name string, file []byte, homes ...string) plant {
	t.Helper()
	p := plant{name: name, homes: homes, forms: [][]byte{key(t, file)}}
	for rest := file; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "PRIVATE KEY" {
			continue
		}
		// A short last line may be in anything.
		for line := range bytes.Lines(pem.EncodeToMemory(block)) {
			if line = bytes.TrimSpace(line); len(line) == 64 {
				p.forms = append(p.forms, line)
			}
		}
	}
	return p
}

// textPlant is a password or a token, as it is and in base64.
func textPlant(name, secret string, homes ...string) plant {
	encoded := strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(secret)), "=")
	// The last digit depends on what follows.
	return plant{name: name, homes: homes, forms: [][]byte{[]byte(secret), []byte(encoded[:len(encoded)-1])}}
}

// search reports what shows a secret that it must not show.
func search(t *testing.T, where string, b []byte, plants []plant) {
	t.Helper()
	if len(b) == 0 {
		t.Errorf("%s is empty: nothing was searched", where)
	}
	for _, p := range plants {
		if p.found(b) {
			t.Errorf("%s shows %s", where, p.name)
		}
	}
}

// searchFiles looks at all files below a folder; secrets may be at home only, and
// there they must be, for their owner alone.
func searchFiles(t *testing.T, root string, plants []plant) {
	t.Helper()
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for _, p := range plants {
			if !p.found(b) {
				continue
			}
			if !slices.ContainsFunc(p.homes, func(home string) bool { ok, _ := filepath.Match(home, rel); return ok }) {
				t.Errorf("file %s holds %s", rel, p.name)
				continue
			}
			seen[p.name] = true
			if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("file %s holds %s and has mode %v, %v", rel, p.name, info.Mode(), err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plants {
		if len(p.homes) > 0 && !seen[p.name] {
			t.Errorf("%s is not found where it is at home: the search does not recognise it", p.name)
		}
	}
}

// searchArguments looks at the arguments of every process of this machine.
func searchArguments(t *testing.T, plants []plant) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 { // a kernel thread's are empty
			search(t, f, b, plants)
		}
	}
}

// coreLimits are the soft and hard limit of a process's core dumps.
func coreLimits(t *testing.T, pid int) []string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
			return strings.Fields(rest)[:2]
		}
	}
	t.Fatalf("no limit of core dumps in %s", b)
	return nil
}

func fetch(t *testing.T, url string) []byte {
	t.Helper()
	client := http.Client{Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, res.Status, err)
	}
	return b
}

// secretRedis runs a Redis whose password is in its configuration.
func (s *secured) secretRedis(addr, password string) *process {
	s.t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		s.t.Skip("no redis-server on this machine: install the package redis-server to run this test")
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.private("redis.conf", fmt.Sprintf("port %s\nbind 127.0.0.1\nsave \"\"\nappendonly no\ndir %s\nrequirepass %s\n", port, s.dir, password))
	p := s.runProgram("redis", path, nil, filepath.Join(s.dir, "redis.conf"))
	return p
}

// private writes a file for its owner alone.
func (s *secured) private(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// secretAgent starts an agent of site a that logs all it can.
func (s *secured) secretAgent(folder string, env []string, more ...string) *process {
	s.t.Helper()
	args := append([]string{"agent", "--coordinator", s.addr, "--federation", "e2e", "--site", "a", "--node", folder, "--data", filepath.Join(s.dir, "agent-"+folder),
		"--retry-max", "500ms", "--log-level", "debug"}, more...)
	args = append(args, "--", binary, "trainer", "--data", filepath.Join(s.dir, "text", "a"), "--held-out", filepath.Join(s.dir, "held-out"),
		"--seed", "1", "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "2", "--evaluate-tokens", "256")
	return s.runProgram("agent-"+folder, binary, env, args...)
}

// Every secret of a federation is planted, everything that can go wrong with it does,
// and then whatever others may read is searched for it.
func TestNoSecretIsWhereOthersRead(t *testing.T) {
	const (
		redisPassword = "planted-redis-3f9c71d2"
		wrongPassword = "planted-wrong-81ab5e07"
		gridToken     = "planted-grid-token-5c20e4b8"
		meterSecret   = "planted meter secret, 32 bytes.."
		badSignature  = "planted another meter's secret.."
		usersOwn      = "the-users-own-key"
	)
	// A provider that refuses the token, and shows what it was given.
	asked := make(chan string, 64)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Header.Get("auth-token"):
		default:
		}
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error": "no such token", "url": %q}`, r.URL)
	}))
	defer provider.Close()

	redisAddr, push, coordinatorMetrics, agentMetrics := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	s := newSecured(t, 2, "trainSeconds: 1, minSites: 1, joinSeconds: 2", "--signals-listen", push, "--metrics-listen", coordinatorMetrics,
		"--redis", "redis://"+redisAddr, "--redis-password-file", "to come")
	s.edit("federation.yaml", "energy: {policy: Ignore}",
		"energy: {enterBelowGrams: 100, leaveAboveGrams: 150, enterConfirmations: 1, leaveConfirmations: 1, webhook: {sources: [{name: meter, secretFiles: ["+filepath.Join(s.dir, "meter.key")+"], sites: [a]}]}}")
	grids := []string{"{provider: Webhook, source: meter}",
		fmt.Sprintf("{provider: ElectricityMaps, region: PT, url: %q, credentials: {tokenFile: %s}}", provider.URL, filepath.Join(s.dir, "grid.token"))}
	yaml, err := os.ReadFile(filepath.Join(s.dir, "federation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(yaml)
	for _, grid := range grids {
		text = strings.Replace(text, "grid: {}", "grid: "+grid, 1)
	}
	s.write("federation.yaml", text)
	meterKey := base64.StdEncoding.EncodeToString([]byte(meterSecret))
	badKey := base64.StdEncoding.EncodeToString([]byte(badSignature))
	s.private("meter.key", "whsec_"+meterKey+"\n")
	s.private("bad-meter.key", "whsec_"+badKey+"\n")
	s.private("grid.token", gridToken+"\n")
	passwordFile := s.private("redis.password", wrongPassword+"\n")
	s.more[len(s.more)-1] = passwordFile
	redis := s.secretRedis(redisAddr, redisPassword)

	// The coordinator begins with a wrong password, which is put right.
	s.startCoordinator()
	s.until("was refused by Redis", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetEvents().GetState() == "Disconnected" && st.GetEvents().GetMessage() != ""
	})
	s.private("redis.password", redisPassword+"\n")

	tokenText := strings.TrimSpace(s.must("token", "create", "--site", "a", "--ttl", "1h"))
	_, open := s.token("a", "1h")
	guessed, err := enrol.NewToken(open.Authority, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	guessed.ID = open.ID // a known token with a secret that is not its own
	secret := strings.Split(tokenText, ".")[2]
	// Of another authority: neither side takes the other.
	otherPKI := filepath.Join(s.dir, "other-pki")
	if out, err := exec.Command(cli, "init", otherPKI, "--federation", "e2e", "--host", "127.0.0.1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	user, users := "WANDB_API_KEY="+usersOwn, []string{}
	users = append(users, user, "GIRASSOL_REDIS_URL=redis://:"+redisPassword+"@"+redisAddr, "GIRASSOL_ENROL_TOKEN="+tokenText)
	agent := s.secretAgent("good", users, "--enrol-address", s.enrolAddr, "--metrics-listen", agentMetrics)
	s.untilLog("agent-good", "enrolled")
	send := func(file string) ([]byte, error) {
		return exec.Command(cli, "signal", "send", "--url", "http://"+push, "--secret-file", filepath.Join(s.dir, file), "--source", "meter", "--site", "a",
			"--kind", "marginal", "--unit", "gCO2/kWh", "--value", "42", "--start", "now", "--period", "5m").CombinedOutput()
	}
	refused, err := send("bad-meter.key")
	if err == nil {
		t.Errorf("a signal with a wrong signature is taken: %s", refused)
	}
	if out, err := send("meter.key"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bad := s.secretAgent("bad-token", []string{"GIRASSOL_ENROL_TOKEN=" + guessed.Text()}, "--enrol-address", s.enrolAddr)
	if bad.wait() == 0 {
		t.Error("an agent with a bad token ends well")
	}
	other := s.secretAgent("bad-authority", []string{"GIRASSOL_REDIS_URL=redis://:" + wrongPassword + "@" + redisAddr},
		"--tls-cert", filepath.Join(otherPKI, "admin.pem"), "--tls-key", filepath.Join(otherPKI, "admin-key.pem"), "--tls-ca", filepath.Join(otherPKI, "ca.pem"))
	s.untilLog("agent-bad-authority", "authority")
	connected := s.until("had two versions and Redis", func(st *coordinatorv1.FederationStatus) bool {
		return st.Version != nil && st.GetVersion() >= 2 && st.GetEvents().GetState() == "Connected"
	})
	redis.kill()
	s.until("missed Redis", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetEvents().GetState() == "Disconnected" && st.GetVersion() > connected.GetVersion()
	})
	select {
	case got := <-asked:
		if got != gridToken {
			t.Errorf("the provider was asked with token %q", got)
		}
	case <-time.After(patience):
		t.Error("the provider was never asked")
	}

	read := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	identity := filepath.Join("agent-good", "identity", "agent.pem")
	plants := []plant{
		textPlant("Redis's password", redisPassword, "redis.conf", "redis.password"),
		textPlant("a wrong password", wrongPassword),
		textPlant("the grid's token", gridToken, "grid.token"),
		textPlant("the meter's secret", meterKey, "meter.key"),
		{name: "the meter's key", forms: [][]byte{[]byte(meterSecret)}},
		textPlant("another meter's secret", badKey, "bad-meter.key"),
		textPlant("the token's secret", secret),
		textPlant("an open token's secret", open.Secret, open.ID+".token"),
		textPlant("a bad token's secret", guessed.Secret),
		keyPlant(t, "the agent's key", read(filepath.Join(s.dir, identity)), identity),
		keyPlant(t, "the authority's key", read(s.file("ca-key.pem")), "pki/ca-key.pem"),
		keyPlant(t, "the coordinator's key", read(s.file("coordinator-key.pem")), "pki/coordinator-key.pem"),
		keyPlant(t, "the administrator's key", read(s.file("admin-key.pem")), "pki/admin-key.pem"),
		keyPlant(t, "another authority's administrator's key", read(filepath.Join(otherPKI, "admin-key.pem")), "other-pki/admin-key.pem"),
	}

	// What the trainer sees.
	children := agent.children()
	if len(children) != 1 {
		t.Fatalf("the agent has the children %v", children)
	}
	environment := read(fmt.Sprintf("/proc/%d/environ", children[0]))
	search(t, "the trainer's environment", environment, plants)
	if !bytes.Contains(environment, []byte(user)) {
		t.Error("the user's own variable does not reach the trainer")
	}
	for _, v := range regexp.MustCompile(`GIRASSOL_[A-Z_]+`).FindAll(environment, -1) {
		if !strings.HasPrefix(string(v), "GIRASSOL_TRAINER_") {
			t.Errorf("the trainer has %s", v)
		}
	}
	// What a dump would hold is not dumped; the trainer is the user's.
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &own); err != nil {
		t.Fatal(err)
	}
	if own.Max > 0 {
		if got := coreLimits(t, s.coord.cmd.Process.Pid); got[0] != "1" || got[1] != "1" {
			t.Errorf("the coordinator may dump %v bytes", got)
		}
		if got := coreLimits(t, agent.cmd.Process.Pid); got[0] != "1" {
			t.Errorf("the agent may dump %v bytes", got)
		}
	}
	if got, was := coreLimits(t, children[0]), coreLimits(t, os.Getpid()); !slices.Equal(got, was) {
		t.Errorf("the trainer may dump %v bytes, before the agent %v", got, was)
	}

	searchArguments(t, plants)
	search(t, "the coordinator's metrics", fetch(t, "http://"+coordinatorMetrics+"/metrics"), plants)
	search(t, "the agent's metrics", fetch(t, "http://"+agentMetrics+"/metrics"), plants)
	search(t, "girassol signal", refused, plants)
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"identities"}, {"identities", "-o", "json"}, {"report"}, {"explain", "a"}, {"explain", "b"}} {
		search(t, "girassol "+strings.Join(args, " "), []byte(s.must(args...)), plants)
	}
	other.kill()
	agent.signal(syscall.SIGTERM)
	if code := agent.wait(); code != 0 {
		t.Errorf("the agent ended with code %d", code)
	}
	s.coord.signal(syscall.SIGTERM)
	if code := s.coord.wait(); code != 0 {
		t.Errorf("the coordinator ended with code %s", strconv.Itoa(code))
	}
	// Logs, the commit log, the agents' data and work folders.
	searchFiles(t, s.dir, plants)
}
