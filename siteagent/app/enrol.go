package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"girassol.dev/internal/enrol"
	"girassol.dev/internal/wire"
	"girassol.dev/siteagent/identity"
)

// identityFolder below --data.
const identityFolder = "identity"

// tokenEnv may hold the token instead of a file. It is taken out of the environment,
// so that no child has it.
const tokenEnv = "GIRASSOL_ENROL_TOKEN"

// maxTokenFile bounds what is read, in bytes.
const maxTokenFile = 4 << 10

type enrolOptions struct{ file, address string }

func (o *enrolOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "enrol", "", "`file` with a one-time token (or "+tokenEnv+"): the agent makes a key and gets a certificate, kept below --data and renewed")
	f.StringVar(&o.address, "enrol-address", "", "`address` where the coordinator enrols agents, host:port")
}

// identity gives the link its certificate: from files given by flags (nil), or the
// agent's own, which --enrol gets first.
func (o *options) identity(ctx context.Context, log *slog.Logger) (*identity.Files, error) {
	folder := filepath.Join(o.data, identityFolder)
	token, err := o.enrol.token()
	if errors.Is(err, fs.ErrNotExist) && enrolled(folder) {
		log.Info("the token's file is gone, and the agent has enrolled: it goes on with its certificate", "identity", folder)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	switch {
	case o.link.Secure() && token != nil:
		return nil, errors.New("--enrol makes a certificate and --tls-cert, --tls-key and --tls-ca give one: choose")
	case o.link.Secure():
		return nil, nil
	case token == nil:
		if _, err := os.Stat(folder); err != nil {
			return nil, nil //nolint:nilerr // never enrolled; plaintext, if that is allowed
		}
	case o.enrol.address == "":
		return nil, errors.New("--enrol needs --enrol-address: host:port of the coordinator's --enrol-listen")
	}
	files, err := identity.Open(folder)
	if err != nil {
		return nil, err
	}
	if token != nil {
		var tunnelKey []byte
		if o.tunnel.wanted() {
			k, err := o.tunnel.key(log)
			if err != nil {
				return nil, err
			}
			tunnelKey = k[:]
		}
		b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Second), backoff.WithMaxInterval(o.retryMax), backoff.WithMaxElapsedTime(0))
		err := files.Enrol(ctx, identity.Enrolment{
			Address: o.enrol.address, ServerName: o.link.ServerName, Federation: o.federation, Site: o.site, Token: *token,
			Now: time.Now, Random: rand.Reader, Log: log, NewPause: b.NextBackOff,
			WireGuardPublicKey: tunnelKey, WireGuard: func(hub *enrol.WireGuard) error { return learn(o.data, hub) },
		})
		if err != nil {
			return nil, err
		}
	}
	c, err := files.Certificate()
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, fmt.Errorf("%s holds no certificate: the enrolment was not finished, start with --enrol again", folder)
	}
	files.Link(&o.link)
	return files, nil
}

// enrolled says whether there is a certificate that is in date.
func enrolled(folder string) bool {
	if _, err := os.Stat(folder); err != nil {
		return false
	}
	files, err := identity.Open(folder)
	if err != nil {
		return false
	}
	c, err := files.Certificate()
	return err == nil && c != nil && time.Now().Before(c.NotAfter)
}

// token reads the token, nil without one. Its errors do not show it.
func (o enrolOptions) token() (*enrol.Token, error) {
	text, from := os.Getenv(tokenEnv), tokenEnv
	if err := os.Unsetenv(tokenEnv); err != nil {
		return nil, err
	}
	if o.file != "" {
		info, err := os.Stat(o.file)
		if err != nil {
			return nil, fmt.Errorf("--enrol: want the file that holds the token: %w", withoutPath(err))
		}
		if info.Size() > maxTokenFile {
			return nil, fmt.Errorf("--enrol: the file has %d bytes, which is no token", info.Size())
		}
		b, err := os.ReadFile(o.file)
		if err != nil {
			return nil, fmt.Errorf("--enrol: %w", withoutPath(err))
		}
		text, from = string(b), "--enrol"
	}
	if text == "" && o.file == "" {
		return nil, nil
	}
	t, err := enrol.ParseToken(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return &t, nil
}

// withoutPath leaves the path out of an error: a token given in the file's place
// would be shown.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// renewal keeps the agent's own certificate in date.
func (o *options) renewal(files *identity.Files, log *slog.Logger) *identity.Renewal {
	r := &identity.Renewal{
		Files: files, Random: rand.Reader, Log: log,
		Dial: func() (*grpc.ClientConn, error) {
			if o.coordinator == "" {
				return nil, errors.New("certificates are renewed beside the tunnel, not through it: give --coordinator, too")
			}
			return wire.Dial(o.coordinator, o.link)
		},
	}
	o.tunnel.renew(r, o.data, log)
	return r
}
