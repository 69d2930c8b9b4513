package energy

import (
	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// observed is what a coordinator's status says that decisions of energy need.
type observed struct {
	round      uint64
	grams, kWh float64 // spent by all sites; grams by the marginal ledger
	samples    float64
	speeds     map[string]float64 // samples in a second of training
}

func observe(s *coordinatorv1.FederationStatus) *observed {
	o := &observed{round: s.GetRound().GetNumber(), speeds: map[string]float64{}}
	for _, site := range s.GetSites() {
		o.samples += float64(site.GetSamples())
		o.kWh += site.GetLedger().GetEnergyKwh()
		o.grams += 1000 * site.GetLedger().GetMarginalKgco2E()
		if site.GetSamples() > 0 && site.GetTrainingSeconds() > 0 {
			o.speeds[site.GetName()] = float64(site.GetSamples()) / site.GetTrainingSeconds()
		}
	}
	return o
}

// The director asks for these at any time; before the first status nothing is
// known and nothing spent.

func (f *federation) round() uint64 {
	if o := f.observed(); o != nil {
		return o.round
	}
	return 0
}

func (f *federation) spent() (grams, kWh float64) {
	if o := f.observed(); o != nil {
		return o.grams, o.kWh
	}
	return 0, 0
}

func (f *federation) trained() float64 {
	if o := f.observed(); o != nil {
		return o.samples
	}
	return 0
}

// facts are a site's speed on the signals' clock and its stated power.
func (r *run) facts(site string) (tokensPerSecond, watts, idleWatts, pue float64, ok bool) {
	o, p := r.f.observed(), r.power[site]
	if o == nil || o.speeds[site] == 0 {
		return 0, 0, 0, 0, false
	}
	return o.speeds[site] / r.f.engine.speed, p.TrainingWatts, p.IdleWatts, p.PUE, p.TrainingWatts > 0
}
