package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
)

func signalCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "signal",
		Short: "Push energy signals",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", "signal "+args[0])}
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(signalSendCommand(o))
	return cmd
}

// sending is the flags of girassol signal send.
type sending struct {
	url, secretFile, source string
	site, region            string
	kind, unit              string
	value                   string
	null                    bool
	start, generatedAt      string
	period                  time.Duration
	id                      string
	tries                   int
}

func signalSendCommand(o *options) *cobra.Command {
	s := &sending{}
	cmd := &cobra.Command{
		Use:   "send",
		Short: "Sign and post one observed value",
		Long: `Sign and post one observed value to a coordinator's POST ` + signalpush.Path + `, as
Standard Webhooks does. It tries again when there is no answer or the receiver is
busy, always with the same id, so that the value counts once.

  girassol signal send --url https://coordinator:8443 --secret-file meter.key \
    --source meter --site lisboa --kind marginal --unit gCO2/kWh --value 87 \
    --start 2026-03-01T12:00:00Z --period 5m`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd, o) },
	}
	f := cmd.Flags()
	f.StringVar(&s.url, "url", "", "`address` of the coordinator's receiver of signals; without a path, "+signalpush.Path+" is added")
	f.StringVar(&s.secretFile, "secret-file", "", "`file` with the source's secret, whsec_…; of several, one a line, each signs")
	f.StringVar(&s.source, "source", "", "`name` of the source that the secret belongs to")
	f.StringVar(&s.site, "site", "", "`site` that the value is for")
	f.StringVar(&s.region, "region", "", "grid `region` that the value is for, instead of a site")
	f.StringVar(&s.kind, "kind", "", "`kind`: marginal, average, percentile, price, renewable_share, traffic_light or available_power")
	f.StringVar(&s.unit, "unit", "", "`unit`: gCO2/kWh, lbCO2/MWh, percentile, EUR/MWh, USD/MWh, %, level, W or kW")
	f.StringVar(&s.value, "value", "", "`number`")
	f.BoolVar(&s.null, "null", false, "say that there is no value, which is not a 0")
	f.StringVar(&s.start, "start", "", "`time` from which the value holds, with an offset, such as 2026-03-01T12:00:00Z; or now")
	f.DurationVar(&s.period, "period", 0, "`time` that it holds for, such as 5m")
	f.StringVar(&s.generatedAt, "generated-at", "", "`time` at which the value was made, which orders values (default now)")
	f.StringVar(&s.id, "id", "", "`id` of this message; one that was taken before does not count again (default random)")
	f.IntVar(&s.tries, "tries", 5, "most `tries`")
	return cmd
}

func (s *sending) run(cmd *cobra.Command, o *options) error {
	now := time.Now()
	signal, err := s.signal(now)
	if err != nil {
		return usageError{err}
	}
	target, err := s.address(o)
	if err != nil {
		return usageError{err}
	}
	if s.tries < 1 {
		return usageError{fmt.Errorf("--tries %d: want 1 or more", s.tries)}
	}
	if s.source == "" || s.secretFile == "" {
		return usageError{errors.New("want --source and --secret-file")}
	}
	if s.id == "" {
		s.id = "msg_" + rand.Text()
	}
	if err := webhooksig.CheckID(s.id); err != nil {
		return usageError{fmt.Errorf("--id: %w", err)}
	}
	secrets, err := readSecrets(s.secretFile)
	if err != nil {
		return err
	}
	client, err := httpClient(o)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	data, err := json.Marshal(signal)
	if err != nil {
		return err
	}
	body, err := json.Marshal(signalpush.Envelope{Type: signalpush.Observed, Timestamp: signalpush.At(now.UTC()), Data: data})
	if err != nil {
		return err
	}
	response, err := webhooksig.Post{
		Client: client, URL: target, Secrets: secrets, ID: s.id, ContentType: signalpush.ContentJSON, Body: body,
		Header: http.Header{http.CanonicalHeaderKey(signalpush.HeaderSource): {s.source}}, Tries: s.tries,
		Waiting: func(why error, wait time.Duration) {
			fmt.Fprintf(cmd.ErrOrStderr(), "girassol: %s; again in %s\n", oneLine(why), wait.Round(100*time.Millisecond))
		},
	}.Do(cmd.Context())
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted")
		}
		return fmt.Errorf("nobody takes signals at %s: %s (message id %s)", target, oneLine(err), s.id)
	}
	return s.report(cmd.OutOrStdout(), o.json(), target, response)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// signal makes the message's data of the flags.
func (s *sending) signal(now time.Time) (signalpush.Signal, error) {
	out := signalpush.Signal{Site: s.site, Region: s.region, Kind: s.kind, Unit: s.unit}
	switch {
	case (s.site == "") == (s.region == ""):
		return out, errors.New("want --site or --region, one of the two")
	case s.kind == "" || s.unit == "":
		return out, errors.New("want --kind and --unit: a number without them means nothing")
	case (s.value != "") == s.null:
		return out, errors.New("want --value or --null, one of the two")
	case s.period <= 0:
		return out, errors.New("want --period, such as 5m")
	case s.start == "":
		return out, errors.New("want --start: a time like 2026-03-01T12:00:00Z, or now")
	}
	value := signalpush.Null()
	if !s.null {
		number, err := strconv.ParseFloat(s.value, 64)
		if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
			return out, fmt.Errorf("--value %s is no number; for none there is --null", s.value)
		}
		value = signalpush.Number(number)
	}
	start, err := moment("--start", s.start, now)
	if err != nil {
		return out, err
	}
	generated, err := moment("--generated-at", s.generatedAt, now)
	if err != nil {
		return out, err
	}
	out.GeneratedAt = generated
	out.Points = []signalpush.Point{{Start: start, DurationSeconds: s.period.Seconds(), Value: value}}
	return out, nil
}

// moment reads a time with an offset; "" and "now" are now.
func moment(flag, s string, now time.Time) (*signalpush.Time, error) {
	if s == "" || s == "now" {
		return signalpush.At(now.UTC()), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return nil, fmt.Errorf("%s %s: want a time with an offset, like 2026-03-01T12:00:00Z or 2026-03-01T13:00:00+01:00", flag, s)
	}
	return signalpush.At(t), nil
}

// address checks the URL: what is signed may be read on the way, so plaintext is
// for loopback, as everywhere.
func (s *sending) address(o *options) (string, error) {
	u, err := url.Parse(s.url)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return "", errors.New("--url: want one like https://coordinator:8443")
	}
	if u.Scheme == "http" && !o.link.AllowInsecure && !loopback(u.Hostname()) {
		return "", fmt.Errorf("--url %s: plaintext off loopback needs --insecure", s.url)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = signalpush.Path
	}
	return u.String(), nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func readSecrets(path string) ([]webhooksig.Secret, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--secret-file: %w", err)
	}
	secrets, err := webhooksig.ParseSecrets(text)
	if err != nil {
		return nil, fmt.Errorf("--secret-file %s: %w", path, err)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("--secret-file %s holds no secret", path)
	}
	return secrets, nil
}

// httpClient follows no redirects and takes the TLS files of the other commands,
// where they are given.
func httpClient(o *options) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.link.ServerName}
	if o.link.CAFile != "" {
		pem, err := os.ReadFile(o.link.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca %s holds no PEM certificate", o.link.CAFile)
		}
	}
	if o.link.CertFile != "" || o.link.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.link.CertFile, o.link.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{
		Timeout:       30 * time.Second,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// sent is the answer in JSON.
type sent struct {
	ID     string `json:"id"`
	Status int    `json:"status"`
	Tries  int    `json:"tries"`
	signalpush.Answer
}

// report puts the answer into words. Anything but 2xx is a failure.
func (s *sending) report(w io.Writer, asJSON bool, target string, r webhooksig.Response) error {
	out := sent{ID: s.id, Status: r.Status, Tries: r.Tries}
	understood := json.Unmarshal(r.Body, &out.Answer) == nil && out.Result != ""
	ok := r.Status/100 == 2
	if asJSON {
		if err := json.NewEncoder(w).Encode(out); err != nil {
			return err
		}
	}
	switch {
	case !understood:
		return fmt.Errorf("%s answered %d %s and is no receiver of signals: check --url", target, r.Status, http.StatusText(r.Status))
	case !ok:
		text := fmt.Sprintf("refused with %d %s: %s", r.Status, out.Reason, out.Message)
		if hint := hints[r.Status]; hint != "" {
			text += " (" + hint + ")"
		}
		return errors.New(text)
	case asJSON:
		return nil
	}
	_, err := fmt.Fprintf(w, "%s: %s (message %s)\n", out.Result, out.Message, s.id)
	return err
}

// hints are the way out of what a person can mend.
var hints = map[int]string{
	http.StatusUnauthorized:       "check --source, --secret-file and this machine's clock",
	http.StatusForbidden:          "the source's list of sites and regions is in the coordinator's configuration",
	http.StatusConflict:           "leave --id out",
	http.StatusTooManyRequests:    "wait, or raise the source's rate in the coordinator's configuration",
	http.StatusServiceUnavailable: "see the coordinator's log",
}
