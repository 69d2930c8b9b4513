package assemble

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/window"
)

// Place is where specs are acted on. It decides where secrets and traces lie.
type Place int

// Places.
const (
	// Standalone: files and environment variables of a coordinator.
	Standalone Place = iota
	// Kubernetes: Secrets of the namespace, and traces in the operator's folder.
	// Files and variables would be the operator's own, which no tenant may read.
	Kubernetes
)

// Policy is the site's energy policy, or else the federation's.
func Policy(f v1alpha1.FederationSpec, s v1alpha1.Site) v1alpha1.EnergyPolicy {
	if s.Spec.Energy != nil && s.Spec.Energy.Policy != "" {
		return s.Spec.Energy.Policy
	}
	return f.Energy.Policy
}

// ValidateSite checks what a site says of energy, grid and power under its
// federation's spec, which has its defaults. Errors name the field and the way
// out.
func ValidateSite(f v1alpha1.FederationSpec, s v1alpha1.Site, at Place) error {
	var errs []error
	g := s.Spec.Grid
	if Policy(f, s) == v1alpha1.EnergyRequired {
		if _, err := window.FromSpec(f.Energy, s.Spec.Energy); err != nil {
			errs = append(errs, err)
		}
		if g.Provider == "" {
			errs = append(errs, fmt.Errorf("spec.grid.provider: energy policy %s needs a signal; name one or set spec.energy.policy to %s", v1alpha1.EnergyRequired, v1alpha1.EnergyIgnore))
		}
	}
	if g.Provider != "" {
		var sources []v1alpha1.WebhookSource
		if f.Energy.Webhook != nil {
			sources = f.Energy.Webhook.Sources
		}
		if err := validateGrid("spec.grid", g, sources, at); err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, meaningful(f, s))
	}
	if e := s.Spec.Energy; e != nil && (e.TargetSites != 0 || e.Budget != nil || e.Webhook != nil) {
		errs = append(errs, errors.New("spec.energy: targetSites, budget and webhook belong to the Federation"))
	}
	p := s.Spec.Power
	if p.TrainingWatts < 0 || p.IdleWatts < 0 {
		errs = append(errs, fmt.Errorf("spec.power: %d and %d watts must not be negative", p.TrainingWatts, p.IdleWatts))
	}
	if p.PUE != nil && p.PUE.AsApproximateFloat64() < 1 {
		errs = append(errs, fmt.Errorf("spec.power.pue: %s is below 1: a facility cannot take less than its machines", p.PUE))
	}
	return errors.Join(errs...)
}

// meaningful refuses thresholds that mean nothing for the kind of signal.
func meaningful(f v1alpha1.FederationSpec, s v1alpha1.Site) error {
	if Policy(f, s) != v1alpha1.EnergyRequired {
		return nil
	}
	kind := KindOf(s.Spec.Grid.GridSource)
	grams := f.Energy.EnterBelowGrams != nil
	if e := s.Spec.Energy; e != nil && (e.EnterBelowGrams != nil || e.EnterBelowPercentile != nil) {
		grams = e.EnterBelowGrams != nil
	}
	switch {
	case kind == v1alpha1.KindRenewableShare:
		return fmt.Errorf("spec.grid.kind: a %s rises with clean power, thresholds mean that less is cleaner; take another signal to decide by", kind)
	case grams && kind != v1alpha1.KindMarginal && kind != v1alpha1.KindAverage:
		return fmt.Errorf("spec.grid.kind: a %s cannot be compared with enterBelowGrams; give enterBelowPercentile and leaveAbovePercentile", kind)
	}
	return nil
}

// validateGrid checks a site's source and what it is checked against.
func validateGrid(path string, g v1alpha1.GridSpec, sources []v1alpha1.WebhookSource, at Place) error {
	errs := []error{validateSource(path, g.GridSource, sources, at)}
	if g.Check != nil {
		if own, other := KindOf(g.GridSource), KindOf(*g.Check); own != other {
			errs = append(errs, fmt.Errorf("%s.check.kind: a %s signal cannot be checked against a %s one", path, own, other))
		}
		errs = append(errs, validateSource(path+".check", *g.Check, sources, at))
	}
	return errors.Join(errs...)
}

// postcode is the outward part of a British postcode.
var postcode = regexp.MustCompile(`^[A-Z]{1,2}[0-9][A-Z0-9]?$`)

// faults collects what is wrong with the fields below a path.
type faults struct {
	path     string
	provider v1alpha1.GridProvider
	errs     []error
}

func (f *faults) bad(field, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s%s: %s", f.path, field, fmt.Sprintf(format, args...)))
}

func (f *faults) need(field, value, what string) {
	if value == "" {
		f.bad("."+field, "provider %s needs %s", f.provider, what)
	}
}

// validateSource checks what a provider needs; path is where the source stands.
func validateSource(path string, g v1alpha1.GridSource, sources []v1alpha1.WebhookSource, at Place) error {
	f := &faults{path: path, provider: g.Provider}
	kinds, known := kindsOf[g.Provider]
	if !known {
		f.bad(".provider", "is %q, want one of Replay, WattTime, ElectricityMaps, NESO, EnergyCharts, Prometheus, Webhook", g.Provider)
		return errors.Join(f.errs...)
	}
	if g.Kind != "" && !slices.Contains(kinds, g.Kind) {
		f.bad(".kind", "%s has no %s signal, only %v", g.Provider, g.Kind, kinds)
	}
	if g.PeriodSeconds < 0 || g.PeriodSeconds > 86400 {
		f.bad(".periodSeconds", "%d is not between 0 and 86400", g.PeriodSeconds)
	}
	if g.URL != "" {
		if u, err := url.Parse(g.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			f.bad(".url", "%q is no http or https URL", g.URL)
		}
	}
	region := f.place(g)
	switch g.Provider {
	case v1alpha1.GridReplay:
		f.need("tracePath", g.TracePath, "a CSV file")
		f.need("region", g.Region, "the column of the CSV file")
	case v1alpha1.GridWattTime:
		f.need("region", region, "a region such as CAISO_NORTH, or latitude and longitude; there is no default")
		f.account(g, at)
	case v1alpha1.GridElectricityMaps:
		f.need("region", region, "a zone such as DE, or latitude and longitude")
		f.token(g, at)
	case v1alpha1.GridNESO:
		if id, err := strconv.Atoi(g.Region); g.Region != "" && (err == nil && (id < 1 || id > 17) || err != nil && !postcode.MatchString(g.Region)) {
			f.bad(".region", "%q is neither a region from 1 to 17 nor an outward postcode such as RG10", g.Region)
		}
	case v1alpha1.GridEnergyCharts:
		f.need("region", g.Region, "a country such as de")
	case v1alpha1.GridPrometheus:
		f.need("url", g.URL, "the server's URL")
		f.need("query", g.Query, "a query that gives one series")
		f.need("unit", g.Unit, "the unit of the values, such as gCO2/kWh")
	case v1alpha1.GridWebhook:
		if g.Source == "" || !slices.ContainsFunc(sources, func(s v1alpha1.WebhookSource) bool { return s.Name == g.Source }) {
			f.bad(".source", "%q is not among spec.energy.webhook.sources", g.Source)
		}
	}
	if g.Unit != "" {
		if err := signals.CheckUnit(signalKinds[KindOf(g)], signals.Unit(g.Unit)); err != nil {
			f.bad(".unit", "%v", err)
		}
	}
	f.secrets(g, at)
	f.traces(g, at)
	return errors.Join(f.errs...)
}

// place is the region, or a word for latitude and longitude.
func (f *faults) place(g v1alpha1.GridSource) string {
	switch {
	case (g.Latitude == nil) != (g.Longitude == nil):
		f.bad(".latitude", "latitude and longitude belong together")
	case g.Latitude != nil && g.Region != "":
		f.bad(".latitude", "give either a region or a place, not both")
	case g.Latitude != nil:
		if lat, lon := *degrees(g.Latitude), *degrees(g.Longitude); lat < -90 || lat > 90 || lon < -180 || lon > 180 {
			f.bad(".latitude", "%g, %g is no place on Earth", lat, lon)
		}
		if g.Provider != v1alpha1.GridWattTime && g.Provider != v1alpha1.GridElectricityMaps {
			f.bad(".latitude", "provider %s knows no places, give a region", g.Provider)
		}
		return "given"
	}
	return g.Region
}

func credentials(g v1alpha1.GridSource) v1alpha1.CredentialsSpec {
	if g.Credentials == nil {
		return v1alpha1.CredentialsSpec{}
	}
	return *g.Credentials
}

func (f *faults) account(g v1alpha1.GridSource, at Place) {
	c := credentials(g)
	if at == Kubernetes {
		f.secret(c, "user and password")
		return
	}
	f.need("credentials.userFile", c.UserFile+c.UserEnv, "a file with the user name, or userEnv")
	f.need("credentials.passwordFile", c.PasswordFile+c.PasswordEnv, "a file with the password, or passwordEnv")
}

func (f *faults) token(g v1alpha1.GridSource, at Place) {
	c := credentials(g)
	if at == Kubernetes {
		f.secret(c, "token")
		return
	}
	f.need("credentials.tokenFile", c.TokenFile+c.TokenEnv, "a file with the auth-token, or tokenEnv")
}

func (f *faults) secret(c v1alpha1.CredentialsSpec, keys string) {
	name := ""
	if c.Secret != nil {
		name = c.Secret.Name
	}
	f.need("credentials.secret", name, "the name of a Secret of this namespace with "+keys)
}

// secrets refuses those of the other place.
func (f *faults) secrets(g v1alpha1.GridSource, at Place) {
	c := credentials(g)
	elsewhere := c
	elsewhere.Secret = nil
	switch {
	case at == Standalone && c.Secret != nil:
		f.bad(".credentials.secret", "Secrets are for Kubernetes; give files (userFile and passwordFile, or tokenFile) or environment variables")
	case at == Kubernetes && elsewhere != v1alpha1.CredentialsSpec{}:
		f.bad(".credentials", "files and environment variables are a standalone coordinator's; put the credentials into a Secret of this namespace, with keys user and password, or token, and name it in credentials.secret")
	}
}

// traces may be anywhere on a machine of one's own, and in one folder elsewhere.
func (f *faults) traces(g v1alpha1.GridSource, at Place) {
	if at != Kubernetes {
		return
	}
	for _, t := range [][2]string{{".tracePath", g.TracePath}, {".averageTracePath", g.AverageTracePath}} {
		if field, name := t[0], t[1]; name != "" && !PlainName(name) {
			f.bad(field, "%q must be the plain name of a file in the operator's folder of traces: no '/', no '..'", name)
		}
	}
}

// PlainName says that a name is one of a file and no path.
func PlainName(name string) bool {
	return name != "" && name != "." && !strings.Contains(name, "..") && !strings.ContainsAny(name, "/\\\x00")
}

// name of a sender, as in package webhook but without capitals.
var senderName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ValidateWebhook checks spec.energy.webhook of a federation. Errors name the
// field and the way out.
func ValidateWebhook(f v1alpha1.FederationSpec, at Place) []error {
	if f.Energy.Webhook == nil {
		return nil
	}
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
	seen := map[string]bool{}
	for i, src := range f.Energy.Webhook.Sources {
		path := fmt.Sprintf("spec.energy.webhook.sources[%d]", i)
		if !senderName.MatchString(src.Name) || seen[src.Name] {
			bad(path+".name", "%q must be 1 to 63 lower-case letters, digits or '-', and stand there once", src.Name)
		}
		seen[src.Name] = true
		files := len(src.SecretFiles) + len(src.BearerFiles)
		switch {
		case at == Standalone && src.Secret != nil:
			bad(path+".secret", "Secrets are for Kubernetes; give secretFiles, or bearerFiles if the sender cannot sign")
		case at == Standalone && files == 0:
			bad(path+".secretFiles", "a sender needs a secret, or a token in bearerFiles if it cannot sign")
		case at == Kubernetes && files > 0:
			bad(path, "secretFiles and bearerFiles are a standalone coordinator's; put the keys into a Secret of this namespace, under names that begin with secret or bearer, and name it in secret")
		case at == Kubernetes && src.Secret == nil:
			bad(path+".secret", "a sender needs a Secret with its keys, under names that begin with secret, or with bearer if it cannot sign")
		}
		switch src.Format {
		case "", v1alpha1.WebhookGirassol, v1alpha1.WebhookOpenADR3:
		default:
			bad(path+".format", "is %q, want %s or %s", src.Format, v1alpha1.WebhookGirassol, v1alpha1.WebhookOpenADR3)
		}
		if len(src.Sites) == 0 && len(src.Regions) == 0 {
			bad(path, "name the sites or regions that it may speak for")
		}
		for _, site := range src.Sites {
			if !slices.ContainsFunc(f.Sites, func(s v1alpha1.SiteReference) bool { return s.Name == site }) {
				bad(path+".sites", "%q is not among spec.sites", site)
			}
		}
	}
	return errs
}
