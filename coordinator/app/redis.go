package app

import (
	"errors"
	"os"
	"strings"

	"girassol.dev/internal/redislink"
)

// redisOptions are nil without a Redis. Flags win over the environment, and both over
// the spec: where Redis is comes from one of them as a whole, the rest by itself.
func redisOptions(d *declaration, o Options) (*redislink.Options, error) {
	to := o.Redis
	to.URL = strings.TrimSpace(to.URL)
	if to.PasswordInURL() {
		o.Log.Warn("the password in --redis can be read by everyone on this machine: use --redis-password-file, or set " + redislink.URLVariable)
	}
	if !to.Configured() {
		to.URL = strings.TrimSpace(os.Getenv(redislink.URLVariable))
	}
	spec := redislink.Options{}
	if r := d.federation.Spec.Events.Redis; r != nil {
		spec = redislink.Options{URL: r.URL, Addresses: r.Addresses, MasterName: r.MasterName, Username: r.Username, PasswordFile: r.PasswordFile}
		if t := r.TLS; t != nil {
			spec.TLS, spec.CAFile, spec.CertFile, spec.KeyFile, spec.ServerName = true, t.CAFile, t.CertFile, t.KeyFile, t.ServerName
		}
		if !to.Configured() && !spec.Configured() {
			return nil, errors.New("spec.events.redis: mode Trial and urlSecret are for Kubernetes; give url or addresses, or start with --redis or --redis-address")
		}
	}
	if to = to.Over(spec); !to.Configured() {
		if to.Named() {
			return nil, errors.New("the flags of Redis say how but not where: give --redis, --redis-address or spec.events.redis")
		}
		return nil, nil
	}
	return &to, nil
}
