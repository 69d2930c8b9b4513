package redislink

import "cmp"

// URLVariable is the environment's variable that names a Redis where no flag does.
const URLVariable = "GIRASSOL_REDIS_URL"

// FlagSet is what Flags needs of a set of flags.
type FlagSet interface {
	StringVar(p *string, name, value, usage string)
	StringSliceVar(p *[]string, name string, value []string, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
}

// Flags adds the flags that name a Redis, the same for every program; what says what
// it is for.
func (o *Options) Flags(f FlagSet, what string) {
	f.StringVar(&o.URL, "redis", "", "`URL` of the Redis "+what+", redis://host:port/db, rediss:// for TLS (default: "+URLVariable+" of the environment, which unlike arguments nobody else on the machine sees)")
	f.StringSliceVar(&o.Addresses, "redis-address", nil, "`address`, host:port, of a node of a Redis Cluster, or of a Sentinel with --redis-master-name; may be repeated")
	f.StringVar(&o.MasterName, "redis-master-name", "", "`name` of the master that the Sentinels watch")
	f.StringVar(&o.Username, "redis-username", "", "ACL `user`")
	f.StringVar(&o.PasswordFile, "redis-password-file", "", "`file` with the password, read again for each connection")
	f.BoolVar(&o.TLS, "redis-tls", false, "use TLS; each of the next four means it, and so does a rediss:// URL (default false)")
	f.StringVar(&o.CAFile, "redis-tls-ca", "", "PEM `file` with the authority of Redis's certificate (default: the system's)")
	f.StringVar(&o.CertFile, "redis-tls-cert", "", "PEM `file` with a client certificate")
	f.StringVar(&o.KeyFile, "redis-tls-key", "", "PEM `file` with its key")
	f.StringVar(&o.ServerName, "redis-tls-server-name", "", "`name` that Redis's certificate must carry (default: the host dialled)")
}

// Over returns o where it says something and under elsewhere; where Redis is comes
// from one of the two as a whole.
func (o Options) Over(under Options) Options {
	if o.CAFile+o.CertFile+o.KeyFile+o.ServerName != "" {
		o.TLS = true
	}
	if !o.Configured() {
		o.URL, o.Addresses = under.URL, under.Addresses
		o.MasterName = cmp.Or(o.MasterName, under.MasterName)
	}
	o.Username, o.PasswordFile = cmp.Or(o.Username, under.Username), cmp.Or(o.PasswordFile, under.PasswordFile)
	o.TLS, o.CAFile = o.TLS || under.TLS, cmp.Or(o.CAFile, under.CAFile)
	if o.CertFile+o.KeyFile == "" {
		o.CertFile, o.KeyFile = under.CertFile, under.KeyFile
	}
	o.ServerName = cmp.Or(o.ServerName, under.ServerName)
	return o
}
