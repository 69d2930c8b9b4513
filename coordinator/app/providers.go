package app

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/electricitymaps"
	"girassol.dev/signals/energycharts"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/neso"
	"girassol.dev/signals/prometheus"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/watttime"
	"girassol.dev/signals/webhook"
)

// providers makes the sources of all sites; those of one provider share its
// account, limits and cache.
type providers struct {
	client   *fetch.Client
	clock    signals.Clock
	pushed   *pushed // nil without spec.energy.webhook
	accounts map[v1alpha1.CredentialsSpec]*watttime.Account
}

func newProviders(client *fetch.Client, clock signals.Clock, p *pushed) *providers {
	return &providers{client: client, clock: clock, pushed: p, accounts: map[v1alpha1.CredentialsSpec]*watttime.Account{}}
}

// source makes the source that a grid names.
func (p *providers) source(site string, g v1alpha1.GridSource) (director.Source, error) {
	switch g.Provider {
	case v1alpha1.GridReplay:
		series, err := column(g.TracePath, g.Region, signals.Marginal)
		if err != nil {
			return nil, fmt.Errorf("spec.grid.tracePath: %w", err)
		}
		return replay.NewSource(series, p.clock, filepath.Base(g.TracePath)), nil
	case v1alpha1.GridWattTime:
		return p.wattTime(g)
	case v1alpha1.GridElectricityMaps:
		return electricitymaps.New(electricitymaps.Config{
			Client: p.client, Token: secret(g.Credentials.TokenFile, g.Credentials.TokenEnv), BaseURL: g.URL, Zone: g.Region,
			Latitude: degrees(g.Latitude), Longitude: degrees(g.Longitude), Period: period(g, time.Hour),
		})
	case v1alpha1.GridNESO:
		c := neso.Config{Client: p.client, BaseURL: g.URL}
		if id, err := strconv.Atoi(g.Region); err == nil {
			c.RegionID = id
		} else {
			c.Postcode = g.Region
		}
		return neso.New(c)
	case v1alpha1.GridEnergyCharts:
		return energycharts.New(energycharts.Config{Client: p.client, BaseURL: g.URL, Country: g.Region})
	case v1alpha1.GridPrometheus:
		c := prometheus.Config{
			Client: p.client, BaseURL: g.URL, Query: g.Query, Kind: signalKinds[kindOf(g)], Unit: signals.Unit(g.Unit), Region: g.Region, Period: period(g, 5*time.Minute),
		}
		if g.Credentials != nil {
			c.Auth = fetch.HeaderAuth("Authorization", "Bearer ", secret(g.Credentials.TokenFile, g.Credentials.TokenEnv))
		}
		return prometheus.New(c)
	case v1alpha1.GridWebhook:
		target := webhook.Target{Site: site}
		if g.Region != "" {
			target = webhook.Target{Region: g.Region}
		}
		return p.pushed.source(g.Source, target, signalKinds[kindOf(g)]), nil
	}
	return nil, fmt.Errorf("spec.grid.provider: %q is none", g.Provider)
}

func (p *providers) wattTime(g v1alpha1.GridSource) (director.Source, error) {
	account := p.accounts[*g.Credentials]
	if account == nil {
		var err error
		account, err = watttime.NewAccount(watttime.AccountConfig{
			Client: p.client, BaseURL: g.URL,
			User:     secret(g.Credentials.UserFile, g.Credentials.UserEnv),
			Password: secret(g.Credentials.PasswordFile, g.Credentials.PasswordEnv),
		})
		if err != nil {
			return nil, err
		}
		p.accounts[*g.Credentials] = account
	}
	signal := map[v1alpha1.SignalKind]watttime.Signal{
		v1alpha1.KindMarginal: watttime.Marginal, v1alpha1.KindAverage: watttime.Average, v1alpha1.KindPercentile: watttime.Index,
	}[kindOf(g)]
	return watttime.New(watttime.Config{Account: account, Signal: signal, Region: g.Region, Latitude: degrees(g.Latitude), Longitude: degrees(g.Longitude)})
}

// secret is in a file or in an environment variable.
func secret(file, env string) *fetch.Secret {
	if file != "" {
		return fetch.File(file)
	}
	return fetch.Value(os.Getenv(env))
}

func degrees(q *resource.Quantity) *float64 {
	if q == nil {
		return nil
	}
	v := q.AsApproximateFloat64()
	return &v
}

func period(g v1alpha1.GridSource, standard time.Duration) time.Duration {
	if g.PeriodSeconds > 0 {
		return seconds(g.PeriodSeconds)
	}
	return standard
}

var signalKinds = map[v1alpha1.SignalKind]signals.Kind{
	v1alpha1.KindMarginal: signals.Marginal, v1alpha1.KindAverage: signals.Average, v1alpha1.KindPercentile: signals.Percentile,
	v1alpha1.KindPrice: signals.Price, v1alpha1.KindRenewableShare: signals.RenewableShare,
}

// kindsOf is what each provider has, its default first.
var kindsOf = map[v1alpha1.GridProvider][]v1alpha1.SignalKind{
	v1alpha1.GridReplay:          {v1alpha1.KindMarginal},
	v1alpha1.GridWattTime:        {v1alpha1.KindMarginal, v1alpha1.KindAverage, v1alpha1.KindPercentile},
	v1alpha1.GridElectricityMaps: {v1alpha1.KindAverage},
	v1alpha1.GridNESO:            {v1alpha1.KindAverage},
	v1alpha1.GridEnergyCharts:    {v1alpha1.KindRenewableShare},
	v1alpha1.GridPrometheus:      {v1alpha1.KindMarginal, v1alpha1.KindAverage, v1alpha1.KindPercentile, v1alpha1.KindPrice},
	v1alpha1.GridWebhook:         {v1alpha1.KindMarginal, v1alpha1.KindAverage, v1alpha1.KindPercentile, v1alpha1.KindPrice},
}

func kindOf(g v1alpha1.GridSource) v1alpha1.SignalKind {
	if g.Kind == "" && len(kindsOf[g.Provider]) > 0 {
		return kindsOf[g.Provider][0]
	}
	return g.Kind
}

// postcode is the outward part of a British postcode.
var postcode = regexp.MustCompile(`^[A-Z]{1,2}[0-9][A-Z0-9]?$`)

// validateGrid checks a site's source and what it is checked against.
func validateGrid(path string, g v1alpha1.GridSpec, sources []v1alpha1.WebhookSource) error {
	errs := []error{validateSource(path, g.GridSource, sources)}
	if g.Check != nil {
		if own, other := kindOf(g.GridSource), kindOf(*g.Check); own != other {
			errs = append(errs, fmt.Errorf("%s.check.kind: a %s signal cannot be checked against a %s one", path, own, other))
		}
		errs = append(errs, validateSource(path+".check", *g.Check, sources))
	}
	return errors.Join(errs...)
}

// validateSource checks what a provider needs; path is where the source stands.
func validateSource(path string, g v1alpha1.GridSource, sources []v1alpha1.WebhookSource) error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s%s: %s", path, field, fmt.Sprintf(format, args...)))
	}
	need := func(field, value, what string) {
		if value == "" {
			bad("."+field, "provider %s needs %s", g.Provider, what)
		}
	}
	kinds, known := kindsOf[g.Provider]
	if !known {
		bad(".provider", "is %q, want one of Replay, WattTime, ElectricityMaps, NESO, EnergyCharts, Prometheus, Webhook", g.Provider)
		return errors.Join(errs...)
	}
	if g.Kind != "" && !contains(kinds, g.Kind) {
		bad(".kind", "%s has no %s signal, only %v", g.Provider, g.Kind, kinds)
	}
	if g.PeriodSeconds < 0 || g.PeriodSeconds > 86400 {
		bad(".periodSeconds", "%d is not between 0 and 86400", g.PeriodSeconds)
	}
	if g.URL != "" {
		if u, err := url.Parse(g.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			bad(".url", "%q is no http or https URL", g.URL)
		}
	}
	creds := v1alpha1.CredentialsSpec{}
	if g.Credentials != nil {
		creds = *g.Credentials
	}
	place := g.Region
	switch {
	case (g.Latitude == nil) != (g.Longitude == nil):
		bad(".latitude", "latitude and longitude belong together")
	case g.Latitude != nil && g.Region != "":
		bad(".latitude", "give either a region or a place, not both")
	case g.Latitude != nil:
		place = "given"
		if lat, lon := *degrees(g.Latitude), *degrees(g.Longitude); lat < -90 || lat > 90 || lon < -180 || lon > 180 {
			bad(".latitude", "%g, %g is no place on Earth", lat, lon)
		}
		if g.Provider != v1alpha1.GridWattTime && g.Provider != v1alpha1.GridElectricityMaps {
			bad(".latitude", "provider %s knows no places, give a region", g.Provider)
		}
	}
	switch g.Provider {
	case v1alpha1.GridReplay:
		need("tracePath", g.TracePath, "a CSV file")
		need("region", g.Region, "the column of the CSV file")
	case v1alpha1.GridWattTime:
		need("region", place, "a region such as CAISO_NORTH, or latitude and longitude; there is no default")
		need("credentials.userFile", creds.UserFile+creds.UserEnv, "a file with the user name, or userEnv")
		need("credentials.passwordFile", creds.PasswordFile+creds.PasswordEnv, "a file with the password, or passwordEnv")
	case v1alpha1.GridElectricityMaps:
		need("region", place, "a zone such as DE, or latitude and longitude")
		need("credentials.tokenFile", creds.TokenFile+creds.TokenEnv, "a file with the auth-token, or tokenEnv")
	case v1alpha1.GridNESO:
		if id, err := strconv.Atoi(g.Region); g.Region != "" && (err == nil && (id < 1 || id > 17) || err != nil && !postcode.MatchString(g.Region)) {
			bad(".region", "%q is neither a region from 1 to 17 nor an outward postcode such as RG10", g.Region)
		}
	case v1alpha1.GridEnergyCharts:
		need("region", g.Region, "a country such as de")
	case v1alpha1.GridPrometheus:
		need("url", g.URL, "the server's URL")
		need("query", g.Query, "a query that gives one series")
		need("unit", g.Unit, "the unit of the values, such as gCO2/kWh")
	case v1alpha1.GridWebhook:
		if !namesSource(sources, g.Source) {
			bad(".source", "%q is not among spec.energy.webhook.sources", g.Source)
		}
	}
	if g.Unit != "" {
		if err := signals.CheckUnit(signalKinds[kindOf(g)], signals.Unit(g.Unit)); err != nil {
			bad(".unit", "%v", err)
		}
	}
	return errors.Join(errs...)
}

func contains(in []v1alpha1.SignalKind, k v1alpha1.SignalKind) bool {
	for _, x := range in {
		if x == k {
			return true
		}
	}
	return false
}

func namesSource(sources []v1alpha1.WebhookSource, name string) bool {
	for _, s := range sources {
		if s.Name == name && name != "" {
			return true
		}
	}
	return false
}
