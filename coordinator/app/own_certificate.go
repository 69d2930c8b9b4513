package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
)

// ownCertificate keeps the coordinator's certificate in date where it holds the
// authority's key: with a new key, for the same names, at two thirds of its life.
type ownCertificate struct {
	federation        string
	authority         *certs.Authority // nil: others renew
	certFile, keyFile string
	now               func() time.Time
	random            io.Reader
	log               *slog.Logger
}

// Looks at the certificate are at least this often, because others may renew it,
// too; after a failure they are sooner.
const (
	ownLook  = time.Hour
	ownRetry = time.Minute
)

// warnOfMode tells of a key that everybody may read. One that is mounted from a Secret
// is a link, and nobody else is in that container.
func (o *ownCertificate) warnOfMode() {
	if info, err := os.Lstat(o.keyFile); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		o.log.Warn("the coordinator's key is open to everybody on this machine: chmod 600 it", "file", o.keyFile, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	}
}

func (o *ownCertificate) run(ctx context.Context) {
	for {
		t := time.NewTimer(o.renewIfDue())
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// renewIfDue says when to look again.
func (o *ownCertificate) renewIfDue() time.Duration {
	due, err := o.look()
	if err != nil {
		o.log.Error("the coordinator's certificate is not renewed", "file", o.certFile, "reason", v1alpha1.ReasonCertificateExpiring, "error", err)
		return ownRetry
	}
	return min(max(due.Sub(o.now()), 100*time.Millisecond), ownLook)
}

func (o *ownCertificate) look() (due time.Time, err error) {
	b, err := os.ReadFile(o.certFile)
	if err != nil {
		return due, err
	}
	c, err := certs.ParseCertificate(b)
	if err != nil {
		return due, fmt.Errorf("%s: %w", o.certFile, err)
	}
	now := o.now()
	due = certs.RenewAt(c)
	keyPEM, err := os.ReadFile(o.keyFile)
	if err != nil {
		return due, err
	}
	// A kill between the two renames leaves the new key beside the old certificate.
	whole := certs.Belongs(c, keyPEM)
	if now.Before(due) && whole {
		return due, nil
	}
	id, err := certs.IdentityOf(c, o.federation)
	switch {
	case o.authority == nil || !o.authority.Issued(c):
		if !whole {
			return due, errors.New("the key is not the certificate's: give both anew")
		}
		o.log.Warn("the coordinator's certificate is due and was issued elsewhere: renew it there", "file", o.certFile, "ends", c.NotAfter, "reason", v1alpha1.ReasonCertificateExpiring)
		return now.Add(ownLook), nil
	case err != nil:
		return due, err
	}
	leaf, err := o.authority.Issue(id, now, o.random)
	if err != nil {
		return due, err
	}
	fresh, err := certs.ParseLeaf(leaf)
	if err != nil {
		return due, err
	}
	if err := errors.Join(replaceFile(o.keyFile, leaf.Key, 0o600), replaceFile(o.certFile, leaf.Certificate, 0o644)); err != nil {
		return due, err
	}
	o.log.Info("the coordinator's certificate is renewed; connections go on, the next have the new one", "file", o.certFile, "ends", fresh.NotAfter, "reason", v1alpha1.ReasonCertificateRenewed)
	return certs.RenewAt(fresh), nil
}

// replaceFile exchanges a file's content at once and for good.
func replaceFile(path string, b []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
