package assemble

import (
	"errors"
	"strings"
	"testing"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/fetch"
)

func grams(v int32) *int32 { return &v }

func spec() v1alpha1.FederationSpec {
	s := v1alpha1.FederationSpec{Sites: []v1alpha1.SiteReference{{Name: "a"}}}
	s.Energy.EnterBelowGrams, s.Energy.LeaveAboveGrams = grams(100), grams(150)
	Defaults(&s)
	return s
}

func TestSecretsAndTracesLieWhereTheSpecIsActedOn(t *testing.T) {
	secret := &v1alpha1.SecretReference{Name: "s"}
	for name, tc := range map[string]struct {
		grid                   v1alpha1.GridSource
		standalone, kubernetes string // what an error says; empty: none
	}{
		"account in a Secret": {v1alpha1.GridSource{Provider: v1alpha1.GridWattTime, Region: "X", Credentials: &v1alpha1.CredentialsSpec{Secret: secret}},
			"Secrets are for Kubernetes; give files", ""},
		"account in files": {v1alpha1.GridSource{Provider: v1alpha1.GridWattTime, Region: "X", Credentials: &v1alpha1.CredentialsSpec{UserFile: "u", PasswordFile: "p"}},
			"", "put the credentials into a Secret"},
		"token in a Secret": {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", Credentials: &v1alpha1.CredentialsSpec{Secret: secret}},
			"tokenFile", ""},
		"token in the environment": {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", Credentials: &v1alpha1.CredentialsSpec{TokenEnv: "T"}},
			"", "needs the name of a Secret"},
		"no credentials": {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE"},
			"needs a file with the auth-token", "needs the name of a Secret"},
		"trace by path":   {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "r", TracePath: "/data/t.csv"}, "", "no '/'"},
		"trace upwards":   {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "r", TracePath: "t.csv", AverageTracePath: ".."}, "", "averageTracePath"},
		"trace by name":   {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "r", TracePath: "t.csv"}, "", ""},
		"nothing secret":  {v1alpha1.GridSource{Provider: v1alpha1.GridNESO}, "", ""},
		"other's secrets": {v1alpha1.GridSource{Provider: v1alpha1.GridNESO, Credentials: &v1alpha1.CredentialsSpec{TokenFile: "/etc/passwd"}}, "", "standalone coordinator's"},
	} {
		t.Run(name, func(t *testing.T) {
			s := v1alpha1.Site{}
			s.Name, s.Spec.Grid.GridSource = "a", tc.grid
			for at, want := range map[Place]string{Standalone: tc.standalone, Kubernetes: tc.kubernetes} {
				err := ValidateSite(spec(), s, at)
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("place %d: %v, want %q", at, err, want)
				}
				if want != "" { // the same words each time, or a condition would flap
					for range 20 {
						if again := ValidateSite(spec(), s, at); again.Error() != err.Error() {
							t.Errorf("%q and %q", err, again)
						}
					}
				}
			}
		})
	}
}

func TestASendersKeysLieWhereTheSpecIsActedOn(t *testing.T) {
	secret := &v1alpha1.SecretReference{Name: "s"}
	for name, tc := range map[string]struct {
		source                 v1alpha1.WebhookSource
		standalone, kubernetes string
	}{
		"Secret":       {v1alpha1.WebhookSource{Name: "dso", Secret: secret, Sites: []string{"a"}}, "Secrets are for Kubernetes", ""},
		"files":        {v1alpha1.WebhookSource{Name: "dso", SecretFiles: []string{"f"}, Sites: []string{"a"}}, "", "put the keys into a Secret"},
		"none":         {v1alpha1.WebhookSource{Name: "dso", Sites: []string{"a"}}, "needs a secret", "needs a Secret"},
		"other's site": {v1alpha1.WebhookSource{Name: "dso", Secret: secret, SecretFiles: []string{"f"}, Sites: []string{"z"}}, `"z" is not among spec.sites`, `"z" is not among spec.sites`},
		"no target":    {v1alpha1.WebhookSource{Name: "dso", Secret: secret}, "name the sites or regions", "name the sites or regions"},
		"bad name":     {v1alpha1.WebhookSource{Name: "a.b", Secret: secret, Sites: []string{"a"}}, "lower-case", "lower-case"},
	} {
		t.Run(name, func(t *testing.T) {
			f := spec()
			f.Energy.Webhook = &v1alpha1.WebhookSpec{Sources: []v1alpha1.WebhookSource{tc.source}}
			for at, want := range map[Place]string{Standalone: tc.standalone, Kubernetes: tc.kubernetes} {
				err := errors.Join(ValidateWebhook(f, at)...)
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("place %d: %v, want %q", at, err, want)
				}
			}
		})
	}
}

// asked counts what is asked for.
type asked map[Credential]int

func (a asked) Find(_ v1alpha1.CredentialsSpec, which Credential) (*fetch.Secret, error) {
	a[which]++
	return fetch.Value("x"), nil
}

func TestSitesOfOneSecretShareAnAccount(t *testing.T) {
	client, err := fetch.New(fetch.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	a := asked{}
	s := &Sources{Client: client, Credentials: a}
	for _, name := range []string{"one", "one", "two"} {
		site := v1alpha1.Site{}
		site.Spec.Grid.GridSource = v1alpha1.GridSource{Provider: v1alpha1.GridWattTime, Region: "X",
			Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: name}}}
		made, err := s.Site(site)
		if err != nil || made.Source == nil || made.Grid.Marginal == nil || made.Grid.Average != nil {
			t.Fatalf("%+v, %v", made, err)
		}
	}
	if a[User] != 2 || a[Password] != 2 {
		t.Errorf("asked %v, want each of two accounts once", a)
	}
}

func TestASiteThatPushesNeedsAWebhook(t *testing.T) {
	s := &Sources{}
	site := v1alpha1.Site{}
	site.Spec.Grid.GridSource = v1alpha1.GridSource{Provider: v1alpha1.GridWebhook, Source: "dso"}
	if _, err := s.Site(site); err == nil || !strings.Contains(err.Error(), "spec.energy.webhook") {
		t.Error(err)
	}
}
