package power

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func counter(device string, joules float64) Reading {
	return Reading{
		Device: device, Source: SourceRAPL, Part: Processor, Cumulative: true,
		Microjoules: uint64(joules * 1e6), Range: raplRange, MaxWatts: 500,
	}
}

func TestSpansOfOneAndOfOverlappingRounds(t *testing.T) {
	var m Meter
	see := func(s float64, r ...Reading) { m.Observe(Sample{At: second(s), Readings: r}) }
	see(0, counter("package-0", 0), counter("package-1", 1000))
	first := m.Begin(second(0))
	see(10, counter("package-0", 1000), counter("package-1", 3000))
	late := m.Begin(second(10))
	see(20, counter("package-0", 2000), counter("package-1", 5000))
	if r := m.End(first, second(20)); r.Joules != 6000 || r.Uncertainty != 0 || r.Source != SourceRAPL || r.Coverage != 1 || r.Notes != nil {
		t.Errorf("the first: %+v", r)
	}
	if r := m.End(late, second(20)); r.Joules != 3000 || r.Coverage != 1 {
		t.Errorf("the later: %+v", r)
	}
	if r := m.Totals(); len(r) != 1 || r[SourceRAPL].Joules != 6000 {
		t.Errorf("totals: %+v", r)
	}
}

func TestSpanThatBeginsAndEndsWithinAGap(t *testing.T) {
	var m Meter
	m.Observe(Sample{At: second(0), Readings: []Reading{counter("package-0", 0)}})
	m.Observe(Sample{At: second(10), Readings: []Reading{counter("package-0", 1000)}})
	m.Observe(Sample{At: second(30)})
	whole, part := m.Begin(second(30)), m.Begin(second(30))
	m.Observe(Sample{At: second(40)})
	if r := m.End(part, second(40)); !near(r.Joules, 1000) || !near(r.Uncertainty, 4000) || r.Coverage != 0 || len(r.Notes) != 1 {
		t.Errorf("nothing was seen, the power before was 100 W: %+v", r)
	}
	m.Observe(Sample{At: second(50), Readings: []Reading{counter("package-0", 9000)}})
	m.Observe(Sample{At: second(60), Readings: []Reading{counter("package-0", 10000)}})
	// 8000 J in 40 s, of which the span has 20.
	if r := m.End(whole, second(60)); !near(r.Joules, 5000) || r.Uncertainty < 3000 || r.Coverage != 1 {
		t.Errorf("the gap's energy is spread evenly: %+v", r)
	}
	if r := m.Totals()[SourceRAPL]; r.Joules != 10000 || r.Uncertainty != 0 {
		t.Errorf("the counter has kept all of it: %+v", r)
	}
}

func TestSpanWithoutAMeterSaysNothing(t *testing.T) {
	var m Meter
	s := m.Begin(second(0))
	m.Observe(Sample{At: second(10)})
	if r := m.End(s, second(10)); r.Source != "" || r.Joules != 0 || r.Coverage != 0 {
		t.Errorf("%+v", r)
	}
	s = m.Begin(second(10))
	if r := m.End(s, second(10)); r.Source != "" || r.Joules != 0 {
		t.Errorf("no time: %+v", r)
	}
}

func TestADeviceThatIsGoneIsNotEstimatedForever(t *testing.T) {
	var m Meter
	m.Observe(Sample{At: second(0), Readings: []Reading{counter("package-0", 0)}})
	m.Observe(Sample{At: second(10), Readings: []Reading{counter("package-0", 1000)}})
	m.Observe(Sample{At: second(2000)})
	s := m.Begin(second(2000))
	m.Observe(Sample{At: second(2060)})
	if r := m.End(s, second(2060)); r.Joules != 0 || r.Source != "" || r.Coverage != 0 || len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestSourcesOfSeveralPartsAreNamed(t *testing.T) {
	var m Meter
	model := Model{Part: Accelerator, Watts: 300, IdleWatts: 100}.reading(math.NaN())
	m.Observe(Sample{At: second(0), Readings: []Reading{counter("package-0", 0), model}})
	s := m.Begin(second(0))
	m.Observe(Sample{At: second(10), Readings: []Reading{counter("package-0", 1000), model}})
	if r := m.End(s, second(10)); r.Source != "model+rapl" || r.Joules != 3000 || r.Coverage != 0.5 || !near(r.Uncertainty, 1000+0.3*2000) {
		t.Errorf("%+v", r)
	}
	// The board's own meter takes over from its stand-in.
	boardReading := Reading{Device: "0000:03:00.0", Source: SourceAMDGPUPower, Part: Accelerator, Watts: 200, MaxWatts: 500}
	m.Observe(Sample{At: second(20), Readings: []Reading{counter("package-0", 2000), boardReading}})
	s = m.Begin(second(20))
	m.Observe(Sample{At: second(30), Readings: []Reading{counter("package-0", 3000), boardReading}})
	if r := m.End(s, second(30)); r.Source != "amdgpu-power+rapl" || r.Joules != 3000 || r.Coverage != 1 {
		t.Errorf("%+v", r)
	}
}

// machine is a device whose true energy is known.
type machine struct {
	kind  string
	most  uint64  // range, µJ
	drawn float64 // J, in truth
	since float64 // shown by the counter since it began anew, J
	watts float64
}

const trueMax = 400

func (m *machine) reading() Reading {
	r := Reading{Device: m.kind, Source: m.kind, Part: Accelerator, MaxWatts: trueMax, Range: m.most}
	if m.kind == "sensor" {
		r.Watts = m.watts
		return r
	}
	r.Cumulative = true
	r.Microjoules = uint64(m.since * 1e6)
	if m.most > 0 {
		r.Microjoules %= m.most
	}
	return r
}

// run goes on for some seconds: the power goes from what it was to watts in a straight line.
func (m *machine) run(watts float64, seconds float64) {
	j := (m.watts + watts) / 2 * seconds
	m.watts = watts
	m.drawn += j
	m.since += j
}

func TestSumNeverFallsAndIsTrueWithinItsUncertainty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dev := machine{kind: rapid.SampledFrom([]string{"free", "short", "rapl", "sensor"}).Draw(t, "kind")}
		switch dev.kind {
		case "short":
			dev.most = 1 << 32
		case "rapl":
			dev.most = raplRange
		}
		dev.since = rapid.Float64Range(0, 5e5).Draw(t, "start")
		dev.watts = rapid.Float64Range(0, trueMax).Draw(t, "watts")
		var m Meter
		at := noon
		observe := func(missing bool) {
			s := Sample{At: at}
			if !missing {
				s.Readings = []Reading{dev.reading()}
			}
			m.Observe(s)
		}
		observe(false)
		var span *Span
		var spanTrue, last float64
		unseen := 0.0 // energy since the last look that was no gap
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			before := dev.drawn
			seconds := rapid.Float64Range(0.2, 10).Draw(t, "seconds")
			missing := rapid.IntRange(0, 4).Draw(t, "missing") == 0
			// A reload may be seen as a fall, or the device is missing meanwhile.
			shown := uint64(dev.since * 1e6)
			if dev.most > 0 {
				shown %= dev.most
			}
			reload := rapid.IntRange(0, 6).Draw(t, "reload") == 0 && unseen == 0 &&
				dev.kind == "free" && (missing || float64(shown)/1e6 > trueMax*10)
			if dev.kind == "rapl" { // a suspended machine's registers: not where it looks like a wrap
				reload = rapid.IntRange(0, 6).Draw(t, "suspend") == 0 && unseen == 0 && !missing &&
					float64(shown)/1e6 > trueMax*11 && float64(raplRange-shown)/1e6 > trueMax*11
			}
			watts := rapid.Float64Range(0, trueMax).Draw(t, "watts")
			dev.run(watts, seconds/2)
			if reload {
				dev.since = 0
			}
			dev.run(watts, seconds/2)
			at = at.Add(time.Duration(seconds * 1e9))
			observe(missing)
			if unseen += dev.drawn - before; !missing {
				unseen = 0
			}
			sum := m.Totals()[dev.kind]
			if sum.Joules < last || sum.Uncertainty < 0 {
				t.Fatalf("the sum fell from %g to %g ± %g J", last, sum.Joules, sum.Uncertainty)
			}
			last = sum.Joules
			const slack = 1e-3 // whole microjoules and nanoseconds
			if !missing && math.Abs(sum.Joules-dev.drawn) > sum.Uncertainty+slack {
				t.Fatalf("%s: %.6f ± %.6f J, truly %.6f; %v", dev.kind, sum.Joules, sum.Uncertainty, dev.drawn, m.Figures().Events)
			}
			switch {
			case span == nil && rapid.Bool().Draw(t, "begin"):
				span, spanTrue = m.Begin(at), dev.drawn
			case span != nil && rapid.Bool().Draw(t, "end"):
				r := m.End(span, at)
				if r.Joules < 0 || r.Uncertainty < 0 || r.Coverage < 0 || r.Coverage > 1 {
					t.Fatalf("a span of %+v", r)
				}
				if truth := dev.drawn - spanTrue; r.Source != "" && math.Abs(r.Joules-truth) > r.Uncertainty+slack {
					t.Fatalf("%s: a span of %+v, truly %g J", dev.kind, r, truth)
				}
				span = nil
			}
		}
	})
}
