package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"girassol.dev/coordinator/round"
)

// world of sites with a clean span of some hours a day, noise and gaps.
func world(b testing.TB, sites int, span time.Duration) Config {
	b.Helper()
	n := int(span / (5 * time.Minute))
	var places []Site
	for i := range sites {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		values := make([]float64, n)
		phase := random.Float64() * 288
		for j := range values {
			day := math.Sin(2 * math.Pi * (float64(j) + phase) / 288)
			values[j] = math.Max(0, math.Round(300-350*day+40*random.NormFloat64()))
			if random.IntN(2000) == 0 {
				values[j] = gap
			}
		}
		places = append(places, place(fmt.Sprintf("site-%03d", i), series(b, fmt.Sprintf("region-%03d", i), "marginal", values...)))
	}
	for i := range places {
		places[i].Region = places[i].Signal.Region
		places[i].Policy.EnterConfirmations, places[i].Policy.LeaveConfirmations = 2, 2
	}
	c := config(places...)
	c.Round = round.Config{MinSites: 1, Train: 10 * time.Minute, Collect: 2 * time.Minute, Join: 5 * time.Minute, Settle: 5 * time.Second, Grace: time.Minute}
	c.Sync = 0.02
	return c
}

func BenchmarkEighteenHoursOfThreeSites(b *testing.B) {
	c := world(b, 3, 18*time.Hour)
	for b.Loop() {
		simulated(b, c)
	}
}

func BenchmarkAYearOfAHundredSites(b *testing.B) {
	c := world(b, 100, 365*24*time.Hour)
	for b.Loop() {
		simulated(b, c)
	}
}

func BenchmarkAMonthOfAHundredSites(b *testing.B) {
	c := world(b, 100, 30*24*time.Hour)
	for b.Loop() {
		simulated(b, c)
	}
}
