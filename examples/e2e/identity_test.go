package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wiretest"
	"girassol.dev/siteagent/identity"
)

// secured is a cluster whose links are mutual TLS, set up as a person does.
type secured struct {
	*cluster
	pki, enrolAddr string
	link           []string // flags of the girassol command
	more           []string // further flags of the coordinator
}

func newSecured(t *testing.T, sites int, rounds string, more ...string) *secured {
	t.Helper()
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: sites, rounds: rounds})
	s := &secured{cluster: c, pki: filepath.Join(c.dir, "pki"), enrolAddr: freeAddr(t), more: more}
	if out, err := exec.Command(cli, "init", s.pki, "--federation", "e2e", "--host", "127.0.0.1", "--host", "localhost").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.link = []string{"--address", c.addr, "--tls-cert", s.file("admin.pem"), "--tls-key", s.file("admin-key.pem"), "--tls-ca", s.file("ca.pem")}
	conn := s.dial(wire.Options{CertFile: s.file("admin.pem"), KeyFile: s.file("admin-key.pem"), CAFile: s.file("ca.pem")})
	c.admin = coordinatorv1.NewAdminClient(conn)
	return s
}

func (s *secured) file(name string) string { return filepath.Join(s.pki, name) }

func (s *secured) dial(o wire.Options) *grpc.ClientConn {
	s.t.Helper()
	conn, err := wire.Dial(s.addr, o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *secured) startCoordinator() {
	s.t.Helper()
	s.cluster.startCoordinator(append([]string{"--tls-cert", s.file("coordinator.pem"), "--tls-key", s.file("coordinator-key.pem"), "--tls-ca", s.file("ca.pem"),
		"--ca-cert", s.file("ca.pem"), "--ca-key", s.file("ca-key.pem"), "--enrol-listen", s.enrolAddr}, s.more...)...)
}

// girassol runs the command as the administrator.
func (s *secured) girassol(args ...string) (string, error) {
	s.t.Helper()
	cmd := exec.Command(cli, append(append([]string(nil), s.link...), args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), errors.New(stderr.String())
	}
	return string(out), nil
}

func (s *secured) must(args ...string) string {
	s.t.Helper()
	out, err := s.girassol(args...)
	if err != nil {
		s.t.Fatalf("girassol %v: %v", args, err)
	}
	return out
}

// token makes one and writes it into a file.
func (s *secured) token(site, ttl string) (file string, t enrol.Token) {
	s.t.Helper()
	text := s.must("token", "create", "--site", site, "--ttl", ttl)
	t, err := enrol.ParseToken(text)
	if err != nil {
		s.t.Fatal(err)
	}
	file = filepath.Join(s.dir, t.ID+".token")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file, t
}

// enrolAgent starts an agent of site i with a token's file.
func (s *secured) enrolAgent(i int, folder, file string) *process {
	s.t.Helper()
	name := siteName(i)
	args := []string{"agent", "--coordinator", s.addr, "--federation", "e2e", "--site", name, "--node", folder, "--data", filepath.Join(s.dir, "agent-"+folder), "--retry-max", "500ms"}
	if file != "" {
		args = append(args, "--enrol", file, "--enrol-address", s.enrolAddr)
	}
	args = append(args, "--", binary, "trainer", "--data", filepath.Join(s.dir, "text", name), "--held-out", filepath.Join(s.dir, "held-out"),
		"--seed", strconv.Itoa(i+1), "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "2", "--evaluate-tokens", "256")
	p := s.run("agent-"+folder, append(args, s.trainer...)...)
	s.agents[folder] = p
	return p
}

func (s *secured) log(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// untilLog waits for a line that fits.
func (s *secured) untilLog(name, pattern string) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if re.MatchString(s.log(name)) {
			return
		}
	}
	s.t.Fatalf("no %s in the log of %s", pattern, name)
}

func (s *secured) identities() *coordinatorv1.ListIdentitiesResponse {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := s.admin.ListIdentities(ctx, &coordinatorv1.ListIdentitiesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// agentLink is the link of an enrolled agent's own files.
func (s *secured) agentLink(folder string) wire.Options {
	f, err := identity.Open(filepath.Join(s.dir, "agent-"+folder, "identity"))
	if err != nil {
		s.t.Fatal(err)
	}
	var o wire.Options
	f.Link(&o)
	return o
}

// A site's life: init, token, enrolment, rounds, renewal, revocation in the middle of
// a session that outlives a kill, and a new token.
func TestASiteEnrolsTrainsRenewsAndIsRevoked(t *testing.T) {
	s := newSecured(t, 1, "trainSeconds: 1, minSites: 1, joinSeconds: 2", "--certificate-life", "8s")
	for name, mode := range map[string]fs.FileMode{"ca-key.pem": 0o600, "coordinator-key.pem": 0o600, "admin-key.pem": 0o600, "ca.pem": 0o644} {
		if info, err := os.Stat(s.file(name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	before, err := os.ReadFile(s.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cli, "init", s.pki, "--federation", "e2e", "--host", "127.0.0.1").CombinedOutput(); err == nil || !strings.Contains(string(out), "is not overwritten") {
		t.Errorf("init again: %v: %s", err, out)
	}
	if after, err := os.ReadFile(s.file("ca.pem")); err != nil || string(after) != string(before) {
		t.Error("init again has changed the authority")
	}
	s.startCoordinator()
	s.identities() // it is up
	file, token := s.token("a", "1h")
	if s.identities().GetTokens()[0].GetId() != token.ID {
		t.Error("the open token is not listed")
	}
	agent := s.enrolAgent(0, "a", file)
	s.untilVersion(2)

	// The key and the certificate are their owner's only.
	dir := filepath.Join(s.dir, "agent-a", "identity")
	for name, mode := range map[string]fs.FileMode{"": 0o700, "agent.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}

	// Renewed more than once, with a new key each time, while rounds go on.
	first, err := os.ReadFile(filepath.Join(dir, "agent.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); len(s.identities().GetCertificates()) < 3; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never renewed twice: %v", s.identities())
		}
	}
	s.untilLog("agent-a", "certificate renewed")
	now, err := os.ReadFile(filepath.Join(dir, "agent.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if string(key(t, first)) == string(key(t, now)) {
		t.Error("the renewed certificate has the old key")
	}
	v := s.until("had a version", func(st *coordinatorv1.FederationStatus) bool { return st.Version != nil }).GetVersion()
	s.untilVersion(v + 1)
	if n := strings.Count(s.log("coordinator"), "session opened"); n != 1 {
		t.Errorf("%d sessions: renewals have cut one", n)
	}

	// A connection that a stopped agent would make is refused once it is revoked.
	out := s.must("revoke", "--site", "a", "--message", "stolen")
	if !strings.Contains(out, "1 live sessions ended") {
		t.Errorf("revoke: %s", out)
	}
	s.untilLog("agent-a", `session ended.*CertificateRevoked: certificate revoked`)
	s.untilLog("agent-a", `refuses the certificate .*certificate revoked.*stolen`)
	s.untilLog("coordinator", `client refused.*certificate revoked`)
	s.until("lost the site", func(st *coordinatorv1.FederationStatus) bool {
		for _, m := range site(st, "a").GetMembers() {
			if m.GetConnected() {
				return false
			}
		}
		return true
	})
	refused := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := coordinatorv1.NewFleetClient(s.dial(s.agentLink("a"))).Renew(ctx, &coordinatorv1.RenewRequest{})
		if err == nil || !strings.Contains(err.Error(), "certificate revoked") {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("after the revocation")
	if out := s.must("identities"); !strings.Contains(out, "revoked") || !strings.Contains(out, "stolen") {
		t.Errorf("identities: %s", out)
	}

	// The revocation outlives a kill, and so does that the token was used.
	s.coord.kill()
	s.startCoordinator()
	s.identities()
	refused("after a kill")
	agent.signal(syscall.SIGTERM)
	agent.wait()
	if p := s.enrolAgent(0, "thief", file); p.wait() == 0 || !strings.Contains(s.log("agent-thief"), "IdentityRevoked") {
		t.Error("a revoked site's token is good again")
	}

	// It comes back by a new token only, into the same data.
	again, _ := s.token("a", "1h")
	s.enrolAgent(0, "a", again)
	s.untilVersion(v + 2)
}

// key is the private key in an agent's file.
func key(t *testing.T, b []byte) []byte {
	t.Helper()
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			t.Fatal("no key")
		}
		if block.Type == "PRIVATE KEY" {
			return block.Bytes
		}
	}
}

func TestTokensThatAreNotGoodEndTheAgentWithTheReason(t *testing.T) {
	s := newSecured(t, 2, "trainSeconds: 1, minSites: 1, joinSeconds: 2")
	s.startCoordinator()
	s.identities()
	used, _ := s.token("a", "1h")
	s.enrolAgent(0, "owner", used)
	s.untilLog("agent-owner", "enrolled")
	expired, _ := s.token("a", "1s")
	for deadline := time.Now().Add(patience); len(s.identities().GetTokens()) > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	revoked, rt := s.token("a", "1h")
	s.must("revoke", "--token", rt.ID)
	other, _ := s.token("b", "1h")
	otherCA := filepath.Join(s.dir, "other.token")
	_, k := s.token("a", "1h")
	k.Authority = strings.Repeat("A", 43)
	if err := os.WriteFile(otherCA, []byte(k.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	for folder, tc := range map[string]struct{ file, says string }{
		"second":  {used, "TokenUsed: .*by another key.*girassol token create"},
		"expired": {expired, "TokenExpired: .*expired at"},
		"revoked": {revoked, "IdentityRevoked: .*was revoked"},
		// A token of b started as a: the site is the token's, whatever is asked for.
		"mistaken": {other, "IdentityMismatch: the token is for site b .*--site b"},
	} {
		p := s.enrolAgent(0, folder, tc.file)
		if code := p.wait(); code == 0 {
			t.Errorf("%s: it ends well", folder)
		}
		if log := s.log("agent-" + folder); !regexp.MustCompile(tc.says).MatchString(log) {
			t.Errorf("%s: no %q in %s", folder, tc.says, log)
		}
	}
	// One of another coordinator is not sent at all.
	p := s.enrolAgent(0, "elsewhere", otherCA)
	s.untilLog("agent-elsewhere", "does not show the authority that the token names.*the token was not sent")
	p.kill()
	// Nothing secret is where others read.
	for _, name := range []string{"coordinator", "agent-owner", "agent-second", "agent-elsewhere"} {
		if strings.Contains(s.log(name), k.Secret) {
			t.Errorf("a token's secret is in the log of %s", name)
		}
	}
	if _, err := s.girassol("token", "create", "--site", "nowhere"); err == nil || !strings.Contains(err.Error(), "UnknownSite") {
		t.Errorf("a token for a site that is not declared: %v", err)
	}
	// A site's certificate is no administrator's.
	link := s.agentLink("owner")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := coordinatorv1.NewAdminClient(s.dial(link)).CreateToken(ctx, &coordinatorv1.CreateTokenRequest{Site: "b"}); err == nil || !strings.Contains(err.Error(), "IdentityMismatch") {
		t.Errorf("a site makes tokens: %v", err)
	}
}

// enrolment of an agent that lives in the test.
func (s *secured) enrolment(address string, t enrol.Token) identity.Enrolment {
	return identity.Enrolment{Address: address, Federation: "e2e", Site: "a", Token: t, Now: time.Now, Random: rand.Reader,
		Log: slog.New(slog.DiscardHandler), NewPause: func() time.Duration { return 50 * time.Millisecond }}
}

// The answer to the token's use is lost: the same key gets its certificate all the
// same, and nobody else one.
func TestALostAnswerLocksNobodyOut(t *testing.T) {
	s := newSecured(t, 1, "trainSeconds: 1, minSites: 1, joinSeconds: 2")
	s.startCoordinator()
	s.identities()
	_, token := s.token("a", "1h")
	line := wiretest.New(t, s.enrolAddr)
	// The handshake passes; the answer, which is longer than all before, does not.
	line.CutDown(2500)
	files, err := identity.Open(filepath.Join(s.dir, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := files.Enrol(ctx, s.enrolment(line.Addr(), token)); err != nil {
		t.Fatal(err)
	}
	if _, _, cuts := line.Passed(); cuts != 1 {
		t.Fatalf("%d cuts", cuts)
	}
	if n := len(s.identities().GetCertificates()); n != 2 {
		t.Logf("%d certificates: the cut came before the use", n)
	}
	other, err := identity.Open(filepath.Join(s.dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Enrol(ctx, s.enrolment(s.enrolAddr, token)); err == nil || !strings.Contains(err.Error(), "TokenUsed") {
		t.Errorf("another key: %v", err)
	}
}

// Killed around the use of a token, the coordinator gives it to one key only, and
// that key gets in.
func TestAKillAroundTheUseOfATokenNeitherLocksOutNorLetsTwoIn(t *testing.T) {
	s := newSecured(t, 1, "trainSeconds: 1, minSites: 1, joinSeconds: 2")
	s.startCoordinator()
	for round := range 4 {
		s.identities()
		_, token := s.token("a", "1h")
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var group sync.WaitGroup
		results := make([]error, 3)
		begin := make(chan struct{})
		for i := range results {
			files, err := identity.Open(filepath.Join(s.dir, "kill", strconv.Itoa(round), strconv.Itoa(i)))
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				<-begin
				results[i] = files.Enrol(ctx, s.enrolment(s.enrolAddr, token))
			})
		}
		close(begin)
		time.Sleep(time.Duration(round*4) * time.Millisecond) // where the kill falls, not what is asserted
		s.coord.kill()
		s.startCoordinator()
		group.Wait()
		in := 0
		for _, err := range results {
			switch {
			case err == nil:
				in++
			case !strings.Contains(err.Error(), "TokenUsed"):
				t.Errorf("round %d: %v", round, err)
			}
		}
		if in != 1 {
			t.Errorf("round %d: %d got in", round, in)
		}
	}
}

// Whoever listens in between, with a certificate of its own, gets neither token nor
// key; what is sent to the right one holds no key either.
func TestNeitherTokenNorKeyReachesAnImpostor(t *testing.T) {
	s := newSecured(t, 1, "trainSeconds: 1, minSites: 1, joinSeconds: 2")
	s.startCoordinator()
	s.identities()
	_, token := s.token("a", "1h")
	a, err := certs.NewAuthority("e2e", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Issue(certs.Coordinator("e2e", "127.0.0.1"), time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Certificate, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	// It shows the true authority's certificate, too, which is no secret.
	truth, err := os.ReadFile(s.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	trueCA, err := certs.ParseCertificate(truth)
	if err != nil {
		t.Fatal(err)
	}
	pair.Certificate = append(pair.Certificate, trueCA.Raw)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan []byte, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func(c net.Conn) {
				defer c.Close()
				b, _ := io.ReadAll(c)
				heard <- b
			}(c)
		}
	}()
	files, err := identity.Open(filepath.Join(s.dir, "victim"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := files.Enrol(ctx, s.enrolment(l.Addr().String(), token)); err == nil || !strings.Contains(err.Error(), "authority") {
		t.Errorf("it enrols with an impostor: %v", err)
	}
	if b := <-heard; len(b) != 0 {
		t.Errorf("the impostor heard %d bytes", len(b))
	}
	if n := len(s.identities().GetTokens()); n != 1 {
		t.Errorf("%d open tokens: this one is still good", n)
	}
}

// The coordinator's own certificate is renewed where it is due, also one that has
// ended while the coordinator was away.
func TestTheCoordinatorRenewsItsOwnCertificate(t *testing.T) {
	s := newSecured(t, 1, "trainSeconds: 1, minSites: 1, joinSeconds: 2")
	caPEM, err := os.ReadFile(s.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := os.ReadFile(s.file("ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := certs.ParseAuthority(caPEM, keyPEM, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old, err := a.IssueFor(certs.Coordinator("e2e", "127.0.0.1"), time.Second, time.Now().Add(-2*time.Minute), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"coordinator.pem": old.Certificate, "coordinator-key.pem": old.Key} {
		if err := os.WriteFile(s.file(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.startCoordinator()
	s.identities()
	b, err := os.ReadFile(s.file("coordinator.pem"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := certs.ParseCertificate(b)
	if err != nil {
		t.Fatal(err)
	}
	if time.Until(c.NotAfter) < 24*time.Hour || c.VerifyHostname("127.0.0.1") != nil || !slicesHas(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		t.Errorf("it is good until %s for %v", c.NotAfter, c.IPAddresses)
	}
	if info, err := os.Stat(s.file("coordinator-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

func slicesHas(all []x509.ExtKeyUsage, one x509.ExtKeyUsage) bool {
	for _, u := range all {
		if u == one {
			return true
		}
	}
	return false
}

// Revoked while it transfers: nothing of it counts after that, and the session says
// why it ended.
func TestARevokedSerialEndsTheSessionThatStandsOnIt(t *testing.T) {
	s := newSecured(t, 2, "trainSeconds: 1, minSites: 1, joinSeconds: 2")
	s.startCoordinator()
	s.identities()
	for i := range 2 {
		file, _ := s.token(siteName(i), "1h")
		s.enrolAgent(i, siteName(i), file)
	}
	v := s.untilVersion(1).GetVersion()
	var serial string
	for _, c := range s.identities().GetCertificates() {
		if c.GetSite() == "a" {
			serial = c.GetSerial()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := s.admin.RevokeIdentity(ctx, &coordinatorv1.RevokeIdentityRequest{Serial: strings.ToUpper(serial)})
	if err != nil || r.GetSessions() != 1 || r.GetCertificates() != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	s.untilLog("agent-a", "CertificateRevoked")
	// The other site's rounds go on.
	s.untilVersion(v + 2)
	// Who is no site gets no site's certificate.
	admin := s.dial(wire.Options{CertFile: s.file("admin.pem"), KeyFile: s.file("admin-key.pem"), CAFile: s.file("ca.pem")})
	if _, err := coordinatorv1.NewFleetClient(admin).Renew(ctx, &coordinatorv1.RenewRequest{}); err == nil || !strings.Contains(err.Error(), "IdentityMismatch") {
		t.Errorf("an administrator renews a site's certificate: %v", err)
	}
	if _, err := s.admin.RevokeIdentity(ctx, &coordinatorv1.RevokeIdentityRequest{}); status.Code(err).String() != "InvalidArgument" {
		t.Errorf("revoking nothing: %v", err)
	}
}
