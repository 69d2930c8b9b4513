package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/internal/certs"
)

// Files that init makes.
const (
	caFile, caKeyFile                   = "ca.pem", "ca-key.pem"
	coordinatorFile, coordinatorKeyFile = "coordinator.pem", "coordinator-key.pem"
	adminFile, adminKeyFile             = "admin.pem", "admin-key.pem"
)

// adminLife of a person's certificate.
const adminLife = 365 * 24 * time.Hour

// federationName as the coordinator takes it.
var federationName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

func initCommand(*options) *cobra.Command {
	var federation string
	var hosts []string
	var renew bool
	cmd := &cobra.Command{
		Use:   "init DIR --federation NAME --host NAME_OR_IP...",
		Short: "Make a federation's authority and the first certificates",
		Long: `Make a federation's authority and the first certificates: files in DIR for the
coordinator and for you. What exists is never overwritten; --renew issues the
coordinator's certificate and yours anew from the authority in DIR.

Whoever has ` + caKeyFile + ` can be anybody in the federation. The coordinator needs it to
enrol sites; keep a copy where nobody else reads.`,
		Args: exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !federationName.MatchString(federation) {
				return usageError{fmt.Errorf("--federation %q: want 1 to 40 lower-case letters, digits or '-', the metadata.name of the Federation", federation)}
			}
			if len(hosts) == 0 {
				return usageError{errors.New("--host: give every name and address under which agents reach the coordinator")}
			}
			for _, h := range hosts {
				if !validHost(h) {
					return usageError{fmt.Errorf("--host %q: want a DNS name or an IP address, without a port", h)}
				}
			}
			made := issued{dir: args[0], federation: federation, hosts: hosts, now: time.Now(), random: rand.Reader}
			err := made.all
			if renew {
				err = made.renew
			}
			if err := err(); err != nil {
				return err
			}
			return made.next(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&federation, "federation", "", "`name` of the federation (required)")
	f.StringArrayVar(&hosts, "host", nil, "`name` or IP address under which agents reach the coordinator; may be repeated (required)")
	f.BoolVar(&renew, "renew", false, "issue the coordinator's certificate and yours anew from the authority in DIR")
	return cmd
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

func validHost(h string) bool { return net.ParseIP(h) != nil || hostName.MatchString(h) }

// issued are the files of one federation.
type issued struct {
	dir, federation string
	hosts           []string
	now             time.Time
	random          io.Reader
}

func (i issued) path(name string) string { return filepath.Join(i.dir, name) }

// all makes everything, or nothing where something exists.
func (i issued) all() error {
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{caFile, caKeyFile, coordinatorFile, coordinatorKeyFile, adminFile, adminKeyFile} {
		if _, err := os.Lstat(i.path(name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s exists and is not overwritten: another authority would lock every site out; choose an empty folder, or give --renew for new certificates from this authority", i.path(name))
		}
	}
	a, err := certs.NewAuthority(i.federation, i.now, i.random)
	if err != nil {
		return err
	}
	// The certificate last: a folder without it is begun anew by hand only.
	if err := errors.Join(writeNew(i.path(caKeyFile), a.KeyPEM, 0o600), writeNew(i.path(caFile), a.CertificatePEM, 0o644)); err != nil {
		return err
	}
	return i.leaves(a)
}

// renew issues the leaves anew.
func (i issued) renew() error {
	certificate, err := os.ReadFile(i.path(caFile))
	if err != nil {
		return fmt.Errorf("%w: --renew needs the authority that girassol init has made", err)
	}
	key, err := os.ReadFile(i.path(caKeyFile))
	if err != nil {
		return err
	}
	a, err := certs.ParseAuthority(certificate, key, i.now)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", i.path(caFile), i.path(caKeyFile), err)
	}
	return i.leaves(a)
}

func (i issued) leaves(a *certs.Authority) error {
	for _, l := range []struct {
		id        certs.Identity
		life      time.Duration
		file, key string
	}{
		{certs.Coordinator(i.federation, i.hosts...), certs.LeafValidity, coordinatorFile, coordinatorKeyFile},
		{certs.Admin(i.federation), adminLife, adminFile, adminKeyFile},
	} {
		leaf, err := a.IssueFor(l.id, l.life, i.now, i.random)
		if err != nil {
			return err
		}
		if err := errors.Join(replace(i.path(l.key), leaf.Key, 0o600), replace(i.path(l.file), leaf.Certificate, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// replace puts a file in the place of another at once.
func replace(path string, b []byte, mode os.FileMode) error {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeNew(next, b, mode); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// next are the commands to go on with.
func (i issued) next(w io.Writer) error {
	host := i.hosts[0]
	_, err := fmt.Fprintf(w, `The authority of federation %[1]s is %[2]s. %[3]s is its key: keep a copy in a safe place.

1. Start the coordinator (federation.yaml has the Federation and its Sites):
   coordinator --config federation.yaml --data data --listen %[8]s --enrol-listen %[9]s \
     --tls-cert %[4]s --tls-key %[5]s --tls-ca %[2]s --ca-cert %[2]s --ca-key %[3]s

2. Make a token for each node of a site; it is good once, for an hour:
   girassol --address %[10]s --tls-cert %[6]s --tls-key %[7]s --tls-ca %[2]s token create --site SITE --ttl 1h > SITE.token

3. Bring it to the node, and start the agent there:
   agent --coordinator %[10]s --federation %[1]s --site SITE --data /var/lib/girassol \
     --enrol SITE.token --enrol-address %[11]s -- python train.py
`, i.federation, i.path(caFile), i.path(caKeyFile), i.path(coordinatorFile), i.path(coordinatorKeyFile), i.path(adminFile), i.path(adminKeyFile),
		"0.0.0.0:7465", "0.0.0.0:7467", net.JoinHostPort(host, "7465"), net.JoinHostPort(host, "7467"))
	return err
}
