// Package redislink owns how a Redis is reached, by a coordinator and by an agent
// alike: its options and their flags, the client, what a federation's users may do
// in it, and how much a Redis that is no longer ours can make a client read.
//
// It must not know what is written or read over a link, nor when.
package redislink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options say how to reach a Redis: by its URL, or by Addresses of a Cluster's
// nodes, or of Sentinels where MasterName is set.
type Options struct {
	URL        string
	Addresses  []string
	MasterName string
	// Username and PasswordFile win over the URL's. The file is read for each
	// connection, so that a password changes without a restart.
	Username, PasswordFile string
	// CAFile, CertFile, KeyFile and ServerName are of TLS, used where TLS is set or
	// the URL is rediss://.
	TLS                                   bool
	CAFile, CertFile, KeyFile, ServerName string
	// Dial connects in place of TCP, whatever address is asked for; TLS, where it is
	// wanted, goes over what it returns. Nil: TCP. For a URL only.
	Dial func(ctx context.Context) (net.Conn, error)
	// DialTimeout of a connection. 0: the client's default.
	DialTimeout time.Duration
}

// Configured says whether it is said where a Redis is.
func (o Options) Configured() bool { return o.URL != "" || len(o.Addresses) > 0 }

// Named says whether anything is said of a Redis at all, be it not where it is.
func (o Options) Named() bool {
	return o.Configured() || o.TLS || o.MasterName+o.Username+o.PasswordFile+o.CAFile+o.CertFile+o.KeyFile+o.ServerName != ""
}

// PasswordInURL says whether the URL brings a password.
func (o Options) PasswordInURL() bool {
	u, err := url.Parse(strings.TrimSpace(o.URL))
	if err != nil || u.User == nil {
		return false
	}
	_, has := u.User.Password()
	return has
}

// Connect returns a client for o, which does not connect yet. It fails on what
// cannot work: a URL or address of the wrong form, or files that are not there.
// Nothing is tried twice: both ends repeat by themselves. What go-redis itself
// logs, one logger for the whole process, goes to log at debug level.
func Connect(o Options, log *slog.Logger) (redis.UniversalClient, error) {
	o.URL = strings.TrimSpace(o.URL)
	switch {
	case o.URL != "" && len(o.Addresses) > 0:
		return nil, errors.New("redis: give its url or addresses, not both")
	case o.URL != "":
		return connectURL(o, log)
	case len(o.Addresses) == 0:
		return nil, errors.New("redis: needs a url or addresses")
	case o.Dial != nil:
		return nil, errors.New("redis: the tunnel leads to one Redis: give its url in place of addresses")
	}
	for _, a := range o.Addresses {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return nil, errors.New("redis: each of its addresses must be host:port")
		}
	}
	u := redis.UniversalOptions{
		Addrs: o.Addresses, MasterName: o.MasterName, IsClusterMode: o.MasterName == "", Username: o.Username,
		// A Cluster's client follows redirections, which are not counted as retries.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 2, DisableIdentity: true,
		DialTimeout: o.DialTimeout, MaintNotificationsConfig: noNotifications, Protocol: 2,
	}
	var err error
	if u.TLSConfig, err = o.tlsConfig(o.TLS); err != nil {
		return nil, err
	}
	if u.CredentialsProviderContext, err = o.credentials(""); err != nil {
		return nil, err
	}
	u.Dialer = dialer(o, u.TLSConfig)
	redis.SetLogger(debugLogger{log})
	return redis.NewUniversalClient(&u), nil
}

// noNotifications: the users of ACL may not ask for what a Redis Enterprise tells of
// its maintenance.
var noNotifications = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

func connectURL(o Options, log *slog.Logger) (redis.UniversalClient, error) {
	if o.MasterName != "" {
		return nil, errors.New("redis: a master's name needs the addresses of Sentinels, not a url")
	}
	single, err := redis.ParseURL(o.URL)
	if err != nil {
		// The URL may hold a password, and errors of url.Parse quote it.
		return nil, errURL
	}
	if single.Network == "unix" && o.TLS {
		return nil, errors.New("redis: TLS needs a Redis at a TCP address, not a Unix socket")
	}
	if single.TLSConfig, err = o.tlsConfig(o.TLS || single.TLSConfig != nil); err != nil {
		return nil, err
	}
	if c := single.TLSConfig; c != nil && c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(single.Addr)
	}
	if single.CredentialsProviderContext, err = o.credentials(single.Username); err != nil {
		return nil, err
	}
	if o.Username != "" {
		single.Username = o.Username
	}
	single.MaxRetries, single.DialerRetries, single.ContextTimeoutEnabled, single.PoolSize = -1, 1, true, 2
	single.DisableIdentity, single.MaintNotificationsConfig, single.Protocol = true, noNotifications, 2
	if o.DialTimeout > 0 {
		single.DialTimeout = o.DialTimeout
	}
	single.Dialer = dialer(o, single.TLSConfig)
	redis.SetLogger(debugLogger{log})
	return redis.NewClient(single), nil
}

// errURL does not quote the URL: it may hold a password.
var errURL = errors.New(`redis: the URL must look like "redis://127.0.0.1:6379/0", with rediss:// for TLS`)

// dialer connects, by TLS where config is set, and bounds what is read.
func dialer(o Options, config *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	timeout := o.DialTimeout
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	plain := net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Minute}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		var conn net.Conn
		var err error
		if o.Dial != nil {
			conn, err = o.Dial(ctx)
		} else {
			conn, err = plain.DialContext(ctx, network, addr)
		}
		if err != nil {
			return nil, err
		}
		if config != nil {
			c := config
			if c.ServerName == "" {
				c = c.Clone()
				c.ServerName, _, _ = net.SplitHostPort(addr)
			}
			secured := tls.Client(conn, c)
			if err := secured.HandshakeContext(ctx); err != nil {
				_ = conn.Close()
				return nil, fmt.Errorf("redis: TLS with %s: %w", addr, err)
			}
			conn = secured
		}
		return guard(conn, o.MasterName != ""), nil
	}
}

// credentials reads the password file for each connection; nil without one. user is
// the URL's.
func (o Options) credentials(user string) (func(context.Context) (string, string, error), error) {
	if o.PasswordFile == "" {
		return nil, nil
	}
	if o.Username != "" {
		user = o.Username
	}
	read := func(context.Context) (string, string, error) {
		b, err := os.ReadFile(o.PasswordFile)
		if err != nil {
			return "", "", fmt.Errorf("redis: the password file: %w", err)
		}
		password := strings.TrimRight(string(b), "\r\n")
		if password == "" {
			return "", "", fmt.Errorf("redis: the password file %s is empty", o.PasswordFile)
		}
		return user, password, nil
	}
	_, _, err := read(context.Background())
	return read, err
}

// tlsConfig is nil where TLS is not wanted.
func (o Options) tlsConfig(wanted bool) (*tls.Config, error) {
	if !wanted {
		if o.CAFile+o.CertFile+o.KeyFile+o.ServerName != "" {
			return nil, errors.New("redis: its TLS files need TLS: give a rediss:// url or tls")
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	if o.CAFile != "" {
		b, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("redis: the CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("redis: the CA file %s has no certificate in PEM", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("redis: a client certificate needs a certificate file and a key file")
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("redis: the client certificate, %s with %s: %w", o.CertFile, o.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

type debugLogger struct{ log *slog.Logger }

func (l debugLogger) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, v...), "from", "go-redis")
	}
}
