package assemble

import (
	"fmt"
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
	"girassol.dev/signals/watttime"
	"girassol.dev/signals/webhook"
)

// source makes the source that a grid names; path is where it stands.
func (s *Sources) source(path, site string, g v1alpha1.GridSource) (director.Source, error) {
	out, err := s.provider(path, site, g)
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Sources) provider(path, site string, g v1alpha1.GridSource) (director.Source, error) {
	switch g.Provider {
	case v1alpha1.GridReplay:
		return s.replaySource(path, g)
	case v1alpha1.GridWattTime:
		return s.wattTime(path, g)
	case v1alpha1.GridElectricityMaps:
		token, err := s.credential(path, g, Token)
		if err != nil {
			return nil, err
		}
		return electricitymaps.New(electricitymaps.Config{
			Client: s.Client, Token: token, BaseURL: g.URL, Zone: g.Region,
			Latitude: degrees(g.Latitude), Longitude: degrees(g.Longitude), Period: period(g, time.Hour),
		})
	case v1alpha1.GridNESO:
		c := neso.Config{Client: s.Client, BaseURL: g.URL}
		if id, err := strconv.Atoi(g.Region); err == nil {
			c.RegionID = id
		} else {
			c.Postcode = g.Region
		}
		return neso.New(c)
	case v1alpha1.GridEnergyCharts:
		return energycharts.New(energycharts.Config{Client: s.Client, BaseURL: g.URL, Country: g.Region})
	case v1alpha1.GridPrometheus:
		return s.prometheus(path, g)
	case v1alpha1.GridWebhook:
		if s.Pushed == nil {
			return nil, fmt.Errorf("%s.source: nothing is pushed without spec.energy.webhook of the Federation", path)
		}
		target := webhook.Target{Site: site}
		if g.Region != "" {
			target = webhook.Target{Region: g.Region}
		}
		return s.Pushed(g.Source, target, signalKinds[KindOf(g)]), nil
	}
	return nil, fmt.Errorf("%s.provider: %q is none", path, g.Provider)
}

// account is what tells accounts apart.
type account struct {
	url, secret string
	rest        v1alpha1.CredentialsSpec
}

func (s *Sources) wattTime(path string, g v1alpha1.GridSource) (director.Source, error) {
	key := account{url: g.URL}
	if g.Credentials != nil {
		key.rest = *g.Credentials
		if ref := g.Credentials.Secret; ref != nil {
			key.secret, key.rest.Secret = ref.Name, nil
		}
	}
	shared := s.accounts[key]
	if shared == nil {
		user, err := s.credential(path, g, User)
		if err != nil {
			return nil, err
		}
		password, err := s.credential(path, g, Password)
		if err != nil {
			return nil, err
		}
		shared, err = watttime.NewAccount(watttime.AccountConfig{Client: s.Client, BaseURL: g.URL, User: user, Password: password})
		if err != nil {
			return nil, err
		}
		if s.accounts == nil {
			s.accounts = map[account]*watttime.Account{}
		}
		s.accounts[key] = shared
	}
	signal := map[v1alpha1.SignalKind]watttime.Signal{
		v1alpha1.KindMarginal: watttime.Marginal, v1alpha1.KindAverage: watttime.Average, v1alpha1.KindPercentile: watttime.Index,
	}[KindOf(g)]
	return watttime.New(watttime.Config{Account: shared, Signal: signal, Region: g.Region, Latitude: degrees(g.Latitude), Longitude: degrees(g.Longitude)})
}

func (s *Sources) prometheus(path string, g v1alpha1.GridSource) (director.Source, error) {
	c := prometheus.Config{
		Client: s.Client, BaseURL: g.URL, Query: g.Query, Kind: signalKinds[KindOf(g)], Unit: signals.Unit(g.Unit), Region: g.Region, Period: period(g, 5*time.Minute),
	}
	if g.Credentials != nil {
		token, err := s.credential(path, g, Token)
		if err != nil {
			return nil, err
		}
		c.Auth = fetch.HeaderAuth("Authorization", "Bearer ", token)
	}
	return prometheus.New(c)
}

func (s *Sources) credential(path string, g v1alpha1.GridSource, which Credential) (*fetch.Secret, error) {
	spec := v1alpha1.CredentialsSpec{}
	if g.Credentials != nil {
		spec = *g.Credentials
	}
	out, err := s.Credentials.Find(spec, which)
	if err != nil {
		return nil, fmt.Errorf("%s.credentials: %w", path, err)
	}
	return out, nil
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

// KindOf is a source's kind of signal: the spec's, or else its provider's own.
func KindOf(g v1alpha1.GridSource) v1alpha1.SignalKind {
	if g.Kind == "" && len(kindsOf[g.Provider]) > 0 {
		return kindsOf[g.Provider][0]
	}
	return g.Kind
}
