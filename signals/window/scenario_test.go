package window

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func minutes(m float64) time.Duration { return time.Duration(m * float64(time.Minute)) }

// TestScenarios runs the files in testdata. Commands:
//
//	policy   [ignore] [none] [enter=100] [leave=100] [percentile] [in=2] [out=2] [on=MIN] [off=MIN]
//	         [stale=Hold|Drain|Admit] [max-stale=MIN] [trailing=MIN] [trust-zero]
//	         starts a site never seen
//	         [min-window=MIN] [lead=MIN] [forecast-age=MIN] [cooldown=MIN]
//	forecast issued=MINUTE [start=MINUTE] [period=MIN] [kind=] [unit=]: values, or null, from the start; nothing: none
//	override in|out until=MINUTE [by=]; nothing: none
//	block    CAUSE[=MINUTE of its end] ...; nothing: none
//	restart  continues with the state's JSON
//	run      one decision per line: MINUTE VALUE|null|none [point=MINUTE] [period=MIN] [kind=] [unit=] [quality=] [region=]
//	         none is no reading; the point is the minute unless said
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var p Policy
		var s State
		var in Inputs
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "policy":
				p, s, in = scenarioPolicy(t, d), State{}, Inputs{}
				return ""
			case "forecast":
				in.Forecast = scenarioForecast(t, d)
				return ""
			case "override":
				in.Override = scenarioOverride(t, d)
				return ""
			case "block":
				in.Blocks = nil
				for _, a := range d.CmdArgs {
					b := Block{Cause: Cause(a.Key)}
					if len(a.Vals) > 0 {
						b.Until = t0.Add(minutes(scenarioNumber(t, d, a.Vals[0])))
					}
					in.Blocks = append(in.Blocks, b)
				}
				return ""
			case "restart":
				s = restart(t, s)
				return ""
			case "run":
				var out strings.Builder
				for line := range strings.Lines(d.Input) {
					now, r := scenarioReading(t, d, strings.Fields(line))
					var dec Decision
					in.Reading = r
					s, dec = DecideWith(p, s, in, now)
					next := "-"
					if !dec.NextChange.IsZero() {
						next = strconv.FormatFloat(dec.NextChange.Sub(t0).Minutes(), 'f', -1, 64)
					}
					admit := "out"
					if dec.Admit {
						admit = "in"
					}
					fmt.Fprintf(&out, "%s %s %s %s next=%s: %s\n", strconv.FormatFloat(now.Sub(t0).Minutes(), 'f', -1, 64),
						dec.Window, admit, dec.Reason, next, dec.Message)
				}
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func scenarioPolicy(t *testing.T, d *datadriven.TestData) Policy {
	p := Policy{Mode: Grams, Enter: 100, EnterConfirmations: 2, LeaveConfirmations: 2,
		MaxStale: DefaultMaxStale, OnStale: v1alpha1.StaleHold, Trailing: DefaultTrailing}
	leave := false
	for _, a := range d.CmdArgs {
		number := func() float64 {
			v, err := strconv.ParseFloat(a.Vals[0], 64)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return v
		}
		switch a.Key {
		case "ignore":
			p.Ignore = true
		case "none":
			p.Mode = None
		case "percentile":
			p.Mode = Percentile
		case "trust-zero":
			p.TrustZero = true
		case "enter":
			p.Enter = number()
		case "leave":
			p.Leave, leave = number(), true
		case "in":
			p.EnterConfirmations = int(number())
		case "out":
			p.LeaveConfirmations = int(number())
		case "on":
			p.MinimumOn = minutes(number())
		case "off":
			p.MinimumOff = minutes(number())
		case "max-stale":
			p.MaxStale = minutes(number())
		case "min-window":
			p.MinWindow = minutes(number())
		case "lead":
			p.LeaveLead = minutes(number())
		case "forecast-age":
			p.MaxForecastAge = minutes(number())
		case "cooldown":
			p.Cooldown = minutes(number())
		case "trailing":
			p.Trailing = minutes(number())
		case "stale":
			p.OnStale = v1alpha1.StalePolicy(a.Vals[0])
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	if !leave {
		p.Leave = p.Enter
	}
	return p
}

func scenarioNumber(t *testing.T, d *datadriven.TestData, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

func scenarioForecast(t *testing.T, d *datadriven.TestData) *signals.Forecast {
	if len(d.CmdArgs) == 0 {
		return nil
	}
	f := &signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "ca", Source: "test"}
	start, each := t0, period
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "issued":
			f.GeneratedAt = t0.Add(minutes(scenarioNumber(t, d, a.Vals[0])))
		case "start":
			start = t0.Add(minutes(scenarioNumber(t, d, a.Vals[0])))
		case "period":
			each = minutes(scenarioNumber(t, d, a.Vals[0]))
		case "kind":
			f.Kind = signals.Kind(a.Vals[0])
		case "unit":
			f.Unit = signals.Unit(a.Vals[0])
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	for i, text := range strings.Fields(d.Input) {
		pt := signals.ForecastPoint{Start: start.Add(time.Duration(i) * each), Duration: each}
		if text != "null" {
			v := scenarioNumber(t, d, text)
			pt.Value = &v
		}
		f.Points = append(f.Points, pt)
	}
	return f
}

func scenarioOverride(t *testing.T, d *datadriven.TestData) *Override {
	if len(d.CmdArgs) == 0 {
		return nil
	}
	o := &Override{}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "in", "out":
			o.Admit = a.Key == "in"
		case "until":
			o.Until = t0.Add(minutes(scenarioNumber(t, d, a.Vals[0])))
		case "by":
			o.By = a.Vals[0]
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	return o
}

func scenarioReading(t *testing.T, d *datadriven.TestData, f []string) (time.Time, *signals.Reading) {
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return v
	}
	now := t0.Add(minutes(number(f[0])))
	if f[1] == "none" {
		return now, nil
	}
	r := &signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "ca",
		PointTime: now, ReceivedTime: now, Period: 5 * time.Minute, Source: "test"}
	if f[1] != "null" {
		v := number(f[1])
		r.Value = &v
	}
	for _, option := range f[2:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "point":
			r.PointTime = t0.Add(minutes(number(value)))
		case "period":
			r.Period = minutes(number(value))
		case "kind":
			r.Kind = signals.Kind(value)
		case "unit":
			r.Unit = signals.Unit(value)
		case "quality":
			r.Quality = signals.Quality(value)
		case "region":
			r.Region = value
		default:
			d.Fatalf(t, "unknown option %s", key)
		}
	}
	return now, r
}

// restart is what a process that ends and begins does to a state.
func restart(t interface{ Fatal(...any) }, s State) State {
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back State
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	return back
}
