package dashboards

// All dashboards, in the order in which a person looks.
func All() []Dashboard { return []Dashboard{federation(), sites(), energy()} }

func federation() Dashboard {
	return Dashboard{
		UID: "girassol-federation", Title: "Girassol / Federation", Description: "Rounds, loss, participants, where a round's time goes, bytes and updates that were not taken.",
		Rows: []Row{
			{"Now", []Panel{
				{Title: "Phase", Kind: Stat, Queries: []Query{{`girassol_federation_phase{federation=~"$federation"} == 1`, "{{phase}}: {{reason}}", true}}},
				{Title: "Rounds committed", Kind: Stat, Queries: []Query{{`sum(girassol_rounds_committed_total{federation=~"$federation"})`, "", true}}},
				{Title: "Members in the last commit", Kind: Stat, Queries: []Query{{`sum(girassol_round_participants{federation=~"$federation"})`, "", true}}},
				{Title: "Held-out loss", Kind: Stat, Queries: []Query{{`min(girassol_evaluation_loss{federation=~"$federation"})`, "", true}}},
			}},
			{"Learning", []Panel{
				{Title: "Loss", Description: "Held-out loss of the merged model, and the loss that the members saw in training, weighted by samples.", Kind: TimeSeries, Step: true, Queries: []Query{
					{`girassol_evaluation_loss{federation=~"$federation"}`, "{{federation}} held out", false},
					{`girassol_training_loss{federation=~"$federation"}`, "{{federation}} training", false}}},
				{Title: "Samples per second", Kind: TimeSeries, Queries: []Query{{`sum by (federation) (rate(girassol_samples_committed_total{federation=~"$federation"}[$__rate_interval]))`, "{{federation}}", false}}},
				{Title: "Agreement", Description: "Moving mean of the cosine of merged delta and the sites' residuals. Decoupled momentum with two sites and more.", Kind: TimeSeries, Step: true, Queries: []Query{
					{`girassol_agreement_ratio{federation=~"$federation"}`, "{{federation}}", false}}},
				{Title: "Rollbacks", Description: "Returns to an older version, by the gate (EvaluationWorse) or by a person.", Kind: TimeSeries, Step: true, Queries: []Query{
					{`sum by (federation, reason) (girassol_rollbacks_total{federation=~"$federation"})`, "{{federation}} {{reason}}", false}}},
			}},
			{"Rounds", []Panel{
				{Title: "Rounds per hour", Kind: TimeSeries, Queries: []Query{
					{`sum by (federation) (rate(girassol_rounds_committed_total{federation=~"$federation"}[$__rate_interval])) * 3600`, "{{federation}} committed", false},
					{`sum by (federation) (rate(girassol_rounds_void_total{federation=~"$federation"}[$__rate_interval])) * 3600`, "{{federation}} void", false}}},
				{Title: "Time of a round", Description: "Mean over committed rounds: training of the slowest member, merging with the commit made durable, and waiting for transfers and others.", Kind: TimeSeries, Unit: "s", Stack: true, Queries: []Query{
					{`sum by (federation, part) (rate(girassol_round_seconds_total{federation=~"$federation"}[$__rate_interval])) / ignoring (part) group_left sum by (federation) (rate(girassol_rounds_committed_total{federation=~"$federation"}[$__rate_interval]) > 0)`, "{{part}}", false}}},
				{Title: "Members by site", Kind: TimeSeries, Step: true, Stack: true, Queries: []Query{{`sum by (site) (girassol_site_members{federation=~"$federation"})`, "{{site}}", false}}},
			}},
			{"Links", []Panel{
				{Title: "Bytes per second", Description: "On the coordinator's sockets, framing included; up is to the coordinator.", Kind: TimeSeries, Unit: "Bps", Queries: []Query{
					{`sum by (federation, direction) (rate(girassol_socket_bytes_total{federation=~"$federation"}[$__rate_interval]))`, "{{federation}} {{direction}}", false}}},
				{Title: "Updates by answer", Description: "Accepted, stale (given back to the site's residual) and refused, with the reason.", Kind: TimeSeries, Queries: []Query{
					{`sum by (outcome, reason) (increase(girassol_updates_total{federation=~"$federation"}[$__rate_interval]))`, "{{outcome}} {{reason}}", false}}},
			}},
		},
	}
}

var (
	windowStates = []State{{1, "open", "green"}, {0, "closed", "dark-red"}, {-1, "unknown", "orange"}}
	present      = []State{{1, "yes", "green"}}
	quarantine   = []State{{1, "in quarantine", "dark-red"}, {0, "none", "green"}}
)

func sites() Dashboard {
	return Dashboard{
		UID: "girassol-sites", Title: "Girassol / Sites", Description: "Phases over intensity, windows, waits for capacity and power.", PerSite: true,
		Rows: []Row{
			{"Who takes part", []Panel{
				{Title: "Phases", Description: "Where each site stands, as the coordinator sees it.", Kind: StateTimeline, States: present, Width: 12, Queries: []Query{
					{`max by (site, phase) (girassol_site_phase{federation=~"$federation", site=~"$site"})`, "{{site}} {{phase}}", false}}},
				{Title: "Windows", Description: "Whether the electricity is good enough.", Kind: StateTimeline, States: windowStates, Width: 12, Queries: []Query{
					{`max by (site) (girassol_signal_window{federation=~"$federation", site=~"$site"})`, "{{site}}", false}}},
				{Title: "Intensity behind the decision", Kind: TimeSeries, Step: true, Width: 12, Queries: []Query{
					{`girassol_site_signal_value{federation=~"$federation", site=~"$site"}`, "{{site}} {{kind}} {{unit}}", false}}},
				{Title: "Age of the signal", Kind: TimeSeries, Unit: "s", Width: 12, Queries: []Query{
					{`max by (site) (girassol_signal_age_seconds{federation=~"$federation", site=~"$site"})`, "{{site}}", false}}},
				{Title: "Quarantines", Description: "Sites whose updates do not count, by the bound of spec.admission that one of them broke.", Kind: StateTimeline, States: quarantine, Width: 24, Queries: []Query{
					{`max by (site, reason) (girassol_site_quarantined{federation=~"$federation", site=~"$site"}) or on (site) 0 * max by (site) (girassol_site_members{federation=~"$federation", site=~"$site"})`, "{{site}} {{reason}}", false}}},
			}},
			{"Work and power", []Panel{
				{Title: "Power", Description: "Measured by counters, or the stated power model's.", Kind: TimeSeries, Unit: "watt", Stack: true, Queries: []Query{
					{`sum by (site, source) (rate(girassol_energy_joules_total{federation=~"$federation", site=~"$site"}[$__rate_interval]))`, "{{site}} {{source}}", false}}},
				{Title: "Members", Kind: TimeSeries, Step: true, Queries: []Query{{`sum by (site) (girassol_site_members{federation=~"$federation", site=~"$site"})`, "{{site}}", false}}},
				{Title: "Admission to first step", Kind: TimeSeries, Step: true, Unit: "s", Queries: []Query{
					{`girassol_site_first_step_seconds{federation=~"$federation", site=~"$site"}`, "{{site}}", false}}},
				{Title: "Rounds contributed per hour", Kind: TimeSeries, Queries: []Query{
					{`sum by (site) (rate(girassol_site_rounds_total{federation=~"$federation", site=~"$site"}[$__rate_interval])) * 3600`, "{{site}}", false}}},
			}},
			{"Capacity (Kubernetes)", []Panel{
				{Title: "Phases by the operator", Kind: StateTimeline, States: present, Width: 12, Queries: []Query{
					{`max by (site, phase) (girassol_operator_site_phase{federation=~"$federation", site=~"$site"})`, "{{site}} {{phase}}", false}}},
				{Title: "Wait for capacity, 90 %", Description: "From the wish to allocatable GPUs, or to the deadline.", Kind: TimeSeries, Unit: "s", Width: 12, Queries: []Query{
					{`histogram_quantile(0.9, sum by (le, site, outcome) (increase(girassol_operator_capacity_wait_seconds_bucket{site=~"$site"}[1h])))`, "{{site}} {{outcome}}", false}}},
				{Title: "Drains by outcome", Kind: TimeSeries, Step: true, Width: 12, Queries: []Query{
					{`sum by (site, outcome) (girassol_operator_drains_total{federation=~"$federation", site=~"$site"})`, "{{site}} {{outcome}}", false}}},
				{Title: "Failovers", Description: "Capacity that did not come by its deadline, or failed; the next site was asked.", Kind: TimeSeries, Step: true, Width: 12, Queries: []Query{
					{`sum by (site) (girassol_operator_failovers_total{federation=~"$federation", site=~"$site"})`, "{{site}}", false}}},
			}},
		},
	}
}

func energy() Dashboard {
	return Dashboard{
		UID: "girassol-energy", Title: "Girassol / Energy", Description: "kWh, grams of CO2 by both ledgers, and what was saved against the same energy at any hour.", PerSite: true,
		Rows: []Row{
			{"So far", []Panel{
				{Title: "Energy", Kind: Stat, Unit: "kwatth", Queries: []Query{{`sum(girassol_energy_joules_total{federation=~"$federation", site=~"$site"}) / 3.6e6`, "", true}}},
				{Title: "CO2, marginal ledger", Kind: Stat, Unit: "massg", Queries: []Query{{`sum(girassol_emissions_grams_total{federation=~"$federation", site=~"$site", accounting="marginal"})`, "", true}}},
				{Title: "CO2, average ledger", Kind: Stat, Unit: "massg", Queries: []Query{{`sum(girassol_emissions_grams_total{federation=~"$federation", site=~"$site", accounting="average"})`, "", true}}},
				{Title: "Saved, marginal ledger", Description: "Against the federation's energy drawn at all hours at the site that would have emitted least; below 0 is a loss.", Kind: Stat, Unit: "massg", Queries: []Query{
					{`min by (federation) (girassol_baseline_emissions_grams{federation=~"$federation"}) - sum by (federation) (girassol_emissions_grams_total{federation=~"$federation", accounting="marginal"})`, "", true}}},
			}},
			{"Over time", []Panel{
				{Title: "CO2 by site, marginal ledger", Kind: TimeSeries, Unit: "massg", Stack: true, Queries: []Query{{`sum by (site) (girassol_emissions_grams_total{federation=~"$federation", site=~"$site", accounting="marginal"})`, "{{site}}", false}}},
				{Title: "CO2 by site, average ledger", Kind: TimeSeries, Unit: "massg", Stack: true, Queries: []Query{{`sum by (site) (girassol_emissions_grams_total{federation=~"$federation", site=~"$site", accounting="average"})`, "{{site}}", false}}},
				{Title: "Energy by site", Kind: TimeSeries, Unit: "kwatth", Stack: true, Queries: []Query{{`sum by (site) (girassol_energy_joules_total{federation=~"$federation", site=~"$site"}) / 3.6e6`, "{{site}}", false}}},
			}},
			{"Against what else could have been", []Panel{
				{Title: "The same energy at all hours, by site", Description: "Energy of the whole federation at each site's mean marginal intensity so far, beside what was really emitted.", Kind: BarGauge, Unit: "massg", Queries: []Query{
					{`girassol_baseline_emissions_grams{federation=~"$federation"}`, "all in {{site}}", true},
					{`sum by (federation) (girassol_emissions_grams_total{federation=~"$federation", accounting="marginal"})`, "{{federation}} as it ran", true}}},
				{Title: "Grams for a million samples", Description: "Marginal ledger; for language models samples are tokens.", Kind: TimeSeries, Unit: "massg", Queries: []Query{
					{`1e6 * sum by (federation) (girassol_emissions_grams_total{federation=~"$federation", accounting="marginal"}) / (sum by (federation) (girassol_samples_committed_total{federation=~"$federation"}) > 0)`, "{{federation}}", false}}},
				{Title: "Intensity behind the decision", Kind: TimeSeries, Step: true, Queries: []Query{{`girassol_site_signal_value{federation=~"$federation", site=~"$site"}`, "{{site}} {{kind}} {{unit}}", false}}},
			}},
		},
	}
}
