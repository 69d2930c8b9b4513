package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/enrol"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wireguard"
	"girassol.dev/siteagent/identity"
)

// tunnelOptions are the agent's end of a tunnel.
type tunnelOptions struct {
	keyFile, peer, endpoint, device string
	mtu                             int
	redis                           bool
}

func (o *tunnelOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.keyFile, "wireguard-key", "", "`file` with the private key of this agent's WireGuard tunnel, made if it is not there; the session then goes through the tunnel (default: no tunnel)")
	f.StringVar(&o.peer, "wireguard-peer", "", "public `key` of the coordinator's tunnel (default: as told at the enrolment)")
	f.StringVar(&o.endpoint, "wireguard-endpoint", "", "`address` of the coordinator's tunnel, UDP, host:port (default: as told at the enrolment)")
	f.StringVar(&o.device, "wireguard-device", string(wireguard.Userspace), "`device` on which the tunnel ends: userspace, or kernel, which needs NET_ADMIN")
	f.IntVar(&o.mtu, "wireguard-mtu", wireguard.DefaultMTU, "most `bytes` of a packet inside the tunnel; in userspace it is lowered to what the path carries")
	f.BoolVar(&o.redis, "wireguard-redis", false, "reach Redis through the tunnel, where the coordinator hands it on (default false)")
}

func (o *tunnelOptions) wanted() bool { return o.keyFile != "" }

func (o *tunnelOptions) check() error {
	if o.wanted() {
		return nil
	}
	if o.peer != "" || o.endpoint != "" || o.redis {
		return errors.New("--wireguard-peer, --wireguard-endpoint and --wireguard-redis need --wireguard-key")
	}
	return nil
}

// key makes the key file if there is none and tells its public key.
func (o *tunnelOptions) key(log *slog.Logger) (wireguard.PublicKey, error) {
	if _, err := os.Stat(o.keyFile); errors.Is(err, fs.ErrNotExist) {
		k, err := wireguard.CreateKey(o.keyFile, rand.Reader)
		if err != nil {
			return k, fmt.Errorf("--wireguard-key: %w", err)
		}
		log.Info("made a key for the tunnel; the coordinator has to know the public one", "file", o.keyFile, "publicKey", k)
		return k, nil
	}
	k, err := wireguard.LoadKey(o.keyFile)
	if err != nil {
		return wireguard.PublicKey{}, fmt.Errorf("--wireguard-key: %w", err)
	}
	return k.Public(), nil
}

// hubFile below --data keeps what the enrolment told of the hub.
const hubFile = "wireguard.json"

// learn keeps what the coordinator tells of its tunnel; what it leaves out stays.
func learn(data string, w *enrol.WireGuard) error {
	known, err := learned(data)
	if err != nil {
		return err
	}
	if w.Endpoint == "" {
		w.Endpoint = known.Endpoint
	}
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if err := keep(filepath.Join(data, hubFile), b); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	return nil
}

// keep replaces a file at once and for good.
func keep(path string, b []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func learned(data string) (enrol.WireGuard, error) {
	var w enrol.WireGuard
	b, err := os.ReadFile(filepath.Join(data, hubFile))
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &w)
	}
	if err != nil {
		return w, fmt.Errorf("tunnel: %s is damaged: delete it, and give --wireguard-peer and --wireguard-endpoint or enrol again with a new token: %w", filepath.Join(data, hubFile), err)
	}
	return w, nil
}

// open makes this end of the tunnel; nil without one.
func (o *tunnelOptions) open(data string, log *slog.Logger) (*tunnel, error) {
	if !o.wanted() {
		return nil, nil
	}
	if _, err := o.key(log); err != nil {
		return nil, err
	}
	known, err := learned(data)
	if err != nil {
		return nil, err
	}
	port := uint16(wireguard.FleetPort)
	if known.Port > 0 && known.Port < 1<<16 && o.peer == "" {
		port = uint16(known.Port)
	}
	var hub wireguard.PublicKey
	switch {
	case o.peer != "":
		if hub, err = wireguard.ParsePublicKey(o.peer); err != nil {
			return nil, fmt.Errorf("--wireguard-peer: %w", err)
		}
	case len(known.PublicKey) > 0:
		if hub, err = wireguard.NewPublicKey(known.PublicKey); err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("--wireguard-key needs --wireguard-peer, the public key of the coordinator's tunnel, which its log shows, and this tunnel's public key in the coordinator's peers file; an agent that enrols with --wireguard-key and a new token needs neither")
	}
	endpoint := o.endpoint
	if endpoint == "" {
		endpoint = known.Endpoint
	}
	if endpoint == "" {
		return nil, errors.New("--wireguard-key needs --wireguard-endpoint, host:port of the coordinator's --wireguard-listen")
	}
	s, err := wireguard.NewSpoke(wireguard.SpokeConfig{
		KeyFile: o.keyFile, Hub: hub, Endpoint: endpoint, MTU: o.mtu, Device: wireguard.Device(o.device), Log: log,
	})
	if err != nil {
		return nil, err
	}
	return &tunnel{s, port}, nil
}

// tunnel is this end and the hub's port for sessions.
type tunnel struct {
	*wireguard.Spoke
	port uint16
}

// link are the options of a link through the tunnel, counted like direct.
func (t *tunnel) link(direct wire.Options) wire.Options {
	return wire.Options{
		Counter: direct.Counter, Window: direct.Window,
		Tunnel: func(ctx context.Context, _ string) (net.Conn, error) { return t.Dial(ctx, t.port) },
	}
}

// address names the hub in errors.
func (t *tunnel) address() string {
	return net.JoinHostPort(t.HubAddress().String(), strconv.Itoa(int(t.port)))
}

// redisDialer connects a Redis client through the tunnel if that is wanted, whatever
// address it asks for; nil otherwise.
func (t *tunnel) redisDialer(wanted bool) func(context.Context) (net.Conn, error) {
	if t == nil || !wanted {
		return nil
	}
	return func(ctx context.Context) (net.Conn, error) { return t.Dial(ctx, wireguard.RedisPort) }
}

// facts are what heartbeats say of the link; t may be nil.
func (t *tunnel) facts(secure bool) *coordinatorv1.Link {
	if t == nil {
		if secure {
			return &coordinatorv1.Link{Mode: string(v1alpha1.LinkMTLS)}
		}
		return &coordinatorv1.Link{Mode: wire.Plaintext}
	}
	st := t.Status()
	l := &coordinatorv1.Link{Mode: string(v1alpha1.LinkWireGuard), TunnelBytesSent: st.Sent, TunnelBytesReceived: st.Received}
	if !st.Handshake.IsZero() {
		age := time.Since(st.Handshake).Seconds()
		l.HandshakeAgeSeconds = &age
	}
	return l
}

// renewSuffix of a key that the coordinator has not been told of yet.
const renewSuffix = ".renew"

// renew has each renewal of the certificate bring a new key of the tunnel, which
// takes over once the coordinator knows it.
func (o *tunnelOptions) renew(r *identity.Renewal, data string, log *slog.Logger) {
	if !o.wanted() {
		return
	}
	fresh := o.keyFile + renewSuffix
	r.WireGuardPublicKey = func() []byte {
		k, err := wireguard.LoadKey(fresh)
		public := wireguard.PublicKey{}
		if err == nil {
			public = k.Public()
		} else if public, err = wireguard.CreateKey(fresh, rand.Reader); err != nil {
			log.Warn("no new key for the tunnel; the old one goes on", "error", err)
			return nil
		}
		return public[:]
	}
	r.WireGuard = func(w *coordinatorv1.WireGuardPeer) {
		err := learn(data, &enrol.WireGuard{PublicKey: w.GetPublicKey(), Endpoint: w.GetEndpoint(), Port: w.GetPort()})
		if err == nil {
			err = os.Rename(fresh, wireguard.NextKeyFile(o.keyFile))
		}
		if err != nil {
			log.Warn("the tunnel's key stays", "error", err)
		}
	}
}
