package app

import (
	"strings"
	"testing"
)

func TestEveryProviderIsConfiguredByItsFields(t *testing.T) {
	const energy = "energy: {enterBelowGrams: 100, leaveAboveGrams: 150}"
	for name, tc := range map[string]struct{ energy, grid, want string }{
		"replay":                     {energy, "{provider: Replay, region: r, tracePath: t.csv}", ""},
		"watttime":                   {energy, "{provider: WattTime, region: CAISO_NORTH, credentials: {userFile: u, passwordFile: p}}", ""},
		"watttime without account":   {energy, "{provider: WattTime, region: CAISO_NORTH}", "spec.grid.credentials.userFile: provider WattTime needs a file with the user name"},
		"watttime by place":          {energy, "{provider: WattTime, latitude: 45.5, longitude: -73.6, credentials: {userEnv: U, passwordEnv: P}}", ""},
		"half a place":               {energy, "{provider: WattTime, latitude: 45.5, credentials: {userEnv: U, passwordEnv: P}}", "belong together"},
		"no place on Earth":          {energy, "{provider: WattTime, latitude: 95, longitude: 7, credentials: {userEnv: U, passwordEnv: P}}", "no place on Earth"},
		"place for NESO":             {energy, "{provider: NESO, latitude: 51, longitude: 0}", "knows no places"},
		"watttime without region":    {energy, "{provider: WattTime, credentials: {userFile: u, passwordFile: p}}", "there is no default"},
		"watttime index, percentile": {"energy: {enterBelowPercentile: 30, leaveAbovePercentile: 60}", "{provider: WattTime, kind: Percentile, region: X, credentials: {userFile: u, passwordFile: p}}", ""},
		"watttime index, grams":      {energy, "{provider: WattTime, kind: Percentile, region: X, credentials: {userFile: u, passwordFile: p}}", "a Percentile cannot be compared with enterBelowGrams"},
		"electricity maps":           {energy, "{provider: ElectricityMaps, region: DE, credentials: {tokenFile: t}}", ""},
		"electricity maps, marginal": {energy, "{provider: ElectricityMaps, kind: Marginal, region: DE, credentials: {tokenFile: t}}", "ElectricityMaps has no Marginal signal, only [Average]"},
		"neso":                       {energy, "{provider: NESO}", ""},
		"neso, region":               {energy, "{provider: NESO, region: \"13\"}", ""},
		"neso, postcode":             {energy, "{provider: NESO, region: RG10}", ""},
		"neso, elsewhere":            {energy, "{provider: NESO, region: \"99\"}", "neither a region from 1 to 17 nor an outward postcode"},
		"energy charts":              {energy, "{provider: EnergyCharts, region: de}", "rises with clean power"},
		"energy charts, shown only":  {"energy: {policy: Ignore}", "{provider: EnergyCharts, region: de}", ""},
		"prometheus":                 {energy, "{provider: Prometheus, url: 'http://127.0.0.1:9090', query: carbon, unit: gCO2/kWh}", ""},
		"prometheus, no query":       {energy, "{provider: Prometheus, url: 'http://127.0.0.1:9090', unit: gCO2/kWh}", "spec.grid.query"},
		"prometheus, price as grams": {energy, "{provider: Prometheus, kind: Price, url: 'http://127.0.0.1:9090', query: q, unit: gCO2/kWh}", "spec.grid.unit"},
		"webhook, unknown source":    {energy, "{provider: Webhook, source: dso}", `"dso" is not among spec.energy.webhook.sources`},
		"webhook":                    {"energy: {enterBelowGrams: 100, leaveAboveGrams: 150, webhook: {sources: [{name: dso, secretFiles: [s], sites: [quebec]}]}}", "{provider: Webhook, source: dso}", ""},
		"webhook, undeclared site":   {"energy: {enterBelowGrams: 100, leaveAboveGrams: 150, webhook: {sources: [{name: dso, secretFiles: [s], sites: [paris]}]}}", "{provider: Webhook, source: dso}", `"paris" is not among spec.sites`},
		"check of another kind":      {energy, "{provider: Replay, region: r, tracePath: t.csv, check: {provider: NESO}}", "a Marginal signal cannot be checked against a Average one"},
		"unknown":                    {energy, "{provider: Oracle}", `spec.grid.provider: is "Oracle"`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodConfig, "energy: {enterBelowGrams: 100, leaveAboveGrams: 150}", tc.energy, 1)
			text = strings.Replace(text, "{provider: Replay, region: ca-qc, tracePath: t.csv}", tc.grid, 1)
			_, err := parse([]byte(text), false)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
