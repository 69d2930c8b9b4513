package app

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/profiling"
	"girassol.dev/operator/capacity"
	"girassol.dev/operator/energy"
	"girassol.dev/operator/provisioning"
	"girassol.dev/operator/scaler"
)

const (
	// callTimeout bounds single calls at start and end.
	callTimeout = 5 * time.Second
	// headerTimeout for whoever connects to say what is wanted.
	headerTimeout = 10 * time.Second
	maxHeader     = 64 << 10
)

// serve adds the servers: those of the leader, and KEDA's scaler of all.
func serve(m manager.Manager, o Options, engine *energy.Engine, keeper *capacity.Keeper) error {
	var errs []error
	if o.WebhookListen != "" {
		// Strangers reach this one, so explanations are not served here.
		errs = append(errs, m.Add(leaderServer("webhook", o.WebhookListen, engine.Pushes(), time.Minute)))
	}
	if o.ProvisioningListen != "" {
		token := func() string { return readToken(o) }
		api := provisioning.New(provisioning.Options{
			Sites: m.GetClient(), Secrets: m.GetAPIReader(), Token: token, Report: keeper.Report, Log: o.Log.With("component", "provisioning"),
		})
		mux := http.NewServeMux()
		mux.Handle("/v1/provisioning", api.Handler())
		mux.Handle("/v1/provisioning/", api.Handler())
		mux.Handle("GET /v1/explain/", bearer(token, engine.Handler()))
		errs = append(errs,
			m.Add(leaderServer("provisioning", o.ProvisioningListen, mux, 0)),
			m.Add(leaderOnly(func(ctx context.Context) error { return watchWishes(ctx, m, api) })))
	}
	if o.DebugListen != "" {
		profiles, err := profiling.Listen(o.DebugListen, o.Log)
		if err != nil {
			return fmt.Errorf("operator: --debug-listen: %w", err)
		}
		errs = append(errs, m.Add(everywhere(profiles.Run)))
	}
	if o.ScalerListen != "" {
		errs = append(errs, m.Add(&scaler.Endpoint{
			Server:  scaler.New(m.GetClient(), o.Log.With("component", "scaler")),
			Address: o.ScalerListen, TLS: o.ScalerTLS, Informers: m.GetCache(),
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("operator: servers: %w", err)
	}
	return nil
}

// everywhere runs beside leader and followers alike.
type everywhere func(context.Context) error

// Start runs it.
func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection says no.
func (everywhere) NeedLeaderElection() bool { return false }

// watchWishes tells the provisioning API of Sites that change.
func watchWishes(ctx context.Context, m manager.Manager, api *provisioning.API) error {
	sites, err := m.GetCache().GetInformer(ctx, &v1alpha1.Site{})
	if err != nil {
		return fmt.Errorf("operator: provisioning API: %w", err)
	}
	if _, err := sites.AddEventHandler(api); err != nil {
		return fmt.Errorf("operator: provisioning API: %w", err)
	}
	return api.Start(ctx)
}

// readToken gives nothing if it cannot: then nobody is let in.
func readToken(o Options) string {
	if o.ProvisioningToken == "" {
		return ""
	}
	b, err := os.ReadFile(o.ProvisioningToken)
	if err != nil {
		o.Log.Warn("token of the provisioning API", "err", err)
		return ""
	}
	return strings.TrimSpace(string(b))
}

// bearer lets in who shows the token; without one nobody.
func bearer(token func() string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := token()
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || want == "" || subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "show the operator's token as a bearer", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// leaderServer serves while this operator leads. A timeout of zero lets answers
// stream for as long as they like.
func leaderServer(name, address string, h http.Handler, timeout time.Duration) *manager.Server {
	end := callTimeout
	return &manager.Server{
		Name: name, OnlyServeWhenLeader: true, ShutdownTimeout: &end,
		Server: &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: timeout, WriteTimeout: timeout, MaxHeaderBytes: maxHeader},
	}
}
