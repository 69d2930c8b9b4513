package broadcast

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
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
}

// Connect returns a client for o, which does not connect yet. It fails on what
// cannot work: a URL or address of the wrong form, or files that are not there.
func Connect(o Options, log *slog.Logger) (redis.UniversalClient, error) {
	u := redis.UniversalOptions{Addrs: o.Addresses, MasterName: o.MasterName, IsClusterMode: o.MasterName == ""}
	switch {
	case o.URL != "" && len(o.Addresses) > 0:
		return nil, errors.New("broadcast: give Redis's url or addresses, not both")
	case o.URL != "":
		p, err := redis.ParseURL(o.URL)
		if err != nil {
			// The URL may hold a password, and errors of url.Parse quote it.
			return nil, errURL
		}
		if p.Network == "unix" && o.TLS {
			return nil, errors.New("broadcast: TLS needs a Redis at a TCP address, not a Unix socket")
		}
		return newClient(redis.UniversalOptions{}, p, o, log)
	case len(o.Addresses) == 0:
		return nil, errors.New("broadcast: Redis needs a url or addresses")
	}
	for _, a := range o.Addresses {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return nil, errors.New("broadcast: each of Redis's addresses must be host:port")
		}
	}
	return newClient(u, nil, o, log)
}

// newClient makes a standalone client where single is set, and a universal one else.
func newClient(u redis.UniversalOptions, single *redis.Options, o Options, log *slog.Logger) (redis.UniversalClient, error) {
	if o.TLS || single != nil && single.TLSConfig != nil {
		config, err := tlsConfig(o)
		if err != nil {
			return nil, err
		}
		if single != nil && config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(single.Addr)
		}
		u.TLSConfig = config
	} else if o.CAFile+o.CertFile+o.KeyFile+o.ServerName != "" {
		return nil, errors.New("broadcast: Redis's TLS files need TLS: give a rediss:// url or tls")
	}
	if o.PasswordFile != "" {
		read := passwords(o.Username, o.PasswordFile)
		if single != nil && o.Username == "" {
			read = passwords(single.Username, o.PasswordFile)
		}
		if _, _, err := read(context.Background()); err != nil {
			return nil, err
		}
		u.CredentialsProviderContext = read
	}
	redis.SetLogger(debugLogger{log})
	if single == nil {
		u.Username = o.Username
		// The Publisher repeats by itself, in order and for ever; a Cluster's client
		// must follow redirections, which it counts as such and not as retries.
		u.MaxRetries, u.ContextTimeoutEnabled, u.PoolSize = -1, true, 2
		return redis.NewUniversalClient(&u), nil
	}
	single.MaxRetries, single.ContextTimeoutEnabled, single.PoolSize = -1, true, 2
	if o.Username != "" {
		single.Username = o.Username
	}
	single.TLSConfig, single.CredentialsProviderContext = u.TLSConfig, u.CredentialsProviderContext
	return redis.NewClient(single), nil
}

func passwords(user, file string) func(context.Context) (string, string, error) {
	return func(context.Context) (string, string, error) {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", "", fmt.Errorf("broadcast: Redis's password file: %w", err)
		}
		password := strings.TrimRight(string(b), "\r\n")
		if password == "" {
			return "", "", fmt.Errorf("broadcast: Redis's password file %s is empty", file)
		}
		return user, password, nil
	}
}

func tlsConfig(o Options) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	if o.CAFile != "" {
		b, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("broadcast: Redis's CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("broadcast: Redis's CA file %s has no certificate in PEM", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("broadcast: a client certificate for Redis needs certFile and keyFile")
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("broadcast: client certificate for Redis, %s with %s: %w", o.CertFile, o.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
