package openadr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/signals/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var lisboa = webhook.Target{Site: "lisboa"}

func number(v *float64) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}

func clock(t time.Time) string { return t.Format("02T15:04:05") }

// lines are messages in words, one a line.
func lines(messages []webhook.Message) string {
	var out []string
	for _, m := range messages {
		text := fmt.Sprintf("%s of %s at %s:", m.Type, m.Target, clock(m.GeneratedAt))
		switch m.Type {
		case webhook.TypeCurtailment:
			text += fmt.Sprintf(" %s %q", m.Curtailment.ID, m.Curtailment.Reason)
			if m.Curtailment.Priority != nil {
				text += fmt.Sprintf(" priority %d", *m.Curtailment.Priority)
			}
			for _, d := range m.Curtailment.Demands {
				text += fmt.Sprintf(" [%s-%s %s %s]", clock(d.Start), clock(d.Until), number(d.LimitWatts), d.Reason)
			}
		default:
			text += fmt.Sprintf(" %s %s %s", m.Series, m.Kind, m.Unit)
			for _, p := range m.Points {
				text += fmt.Sprintf(" [%s+%s %s]", clock(p.Start), p.Period, number(p.Value))
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

func options() Options { return Options{Target: lisboa, Jitter: func(string) float64 { return 0.5 }} }

const dated = `"createdDateTime":"2026-03-01T10:00:00Z","modificationDateTime":"2026-03-01T11:00:00Z"`

// event with given fields and an interval per list of payloads.
func event(fields string, intervals ...string) string {
	for i, v := range intervals {
		if !strings.HasPrefix(v, `{"id":`) {
			intervals[i] = fmt.Sprintf(`{"id":%d,"payloads":[%s]}`, 7*i%5, v)
		}
	}
	return `{"id":"e1","programID":"p","objectType":"EVENT",` + fields + `,"intervals":[` + strings.Join(intervals, ",") + `]}`
}

const hourly = dated + `,"intervalPeriod":{"start":"2026-03-01T13:00:00+01:00","duration":"PT1H"}`

func TestEventsBecomeMessages(t *testing.T) {
	at := "at 01T11:00:00:"
	for name, c := range map[string]struct{ event, want string }{
		"GHG, one after another": {event(hourly, `{"type":"GHG","values":[80]}`, `{"type":"GHG","values":[0]}`, `{"type":"GHG","values":[null]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T12:00:00+1h0m0s 80] [01T13:00:00+1h0m0s 0] [01T14:00:00+1h0m0s none]"},
		"GHG with its descriptor": {event(hourly+`,"payloadDescriptors":[{"payloadType":"GHG","units":"GHG"}]`, `{"type":"GHG","values":[80.5]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T12:00:00+1h0m0s 80.5]"},
		"PRICE per kWh": {event(hourly+`,"payloadDescriptors":[{"payloadType":"PRICE","units":"KWH","currency":"USD"}]`, `{"type":"PRICE","values":[-0.0125]}`),
			"forecast of site lisboa " + at + " e1 price USD/MWh [01T12:00:00+1h0m0s -12.5]"},
		"PRICE per MWh and GHG": {event(hourly+`,"payloadDescriptors":[{"payloadType":"PRICE","units":"MWH","currency":"EUR"}]`, `{"type":"PRICE","values":[40]},{"type":"GHG","values":[7]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T12:00:00+1h0m0s 7]\nforecast of site lisboa " + at + " e1 price EUR/MWh [01T12:00:00+1h0m0s 40]"},
		"SIMPLE": {event(hourly+`,"eventName":"peak","priority":0`, `{"type":"SIMPLE","values":[1]}`, `{"type":"SIMPLE","values":[2]}`, `{"type":"SIMPLE","values":[2]}`, `{"type":"SIMPLE","values":[3]}`, `{"type":"SIMPLE","values":[0]}`),
			"curtailment of site lisboa " + at + ` e1 "peak" priority 0 [01T13:00:00-01T15:00:00 none SIMPLE 2] [01T15:00:00-01T16:00:00 none SIMPLE 3]`},
		"SIMPLE below high": {event(hourly, `{"type":"SIMPLE","values":[0]}`, `{"type":"SIMPLE","values":[1]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1"`},
		"alerts": {event(hourly, `{"type":"ALERT_GRID_EMERGENCY","values":["shed now"]}`, `{"type":"ALERT_FLEX_ALERT","values":[]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1" [01T12:00:00-01T13:00:00 none ALERT_GRID_EMERGENCY: shed now] [01T13:00:00-01T14:00:00 none ALERT_FLEX_ALERT]`},
		"a limit": {event(hourly+`,"payloadDescriptors":[{"payloadType":"IMPORT_CAPACITY_LIMIT","units":"KW"}]`, `{"type":"IMPORT_CAPACITY_LIMIT","values":[1.5]}`, `{"type":"IMPORT_CAPACITY_LIMIT","values":[null]}`, `{"type":"IMPORT_CAPACITY_LIMIT","values":[0]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1" [01T12:00:00-01T13:00:00 1500 IMPORT_CAPACITY_LIMIT] [01T14:00:00-01T15:00:00 0 IMPORT_CAPACITY_LIMIT]`},
		"an interval's own period": {event(hourly, `{"id":1,"payloads":[{"type":"GHG","values":[1]}]}`, `{"id":0,"intervalPeriod":{"start":"2026-03-01T09:00:00Z","duration":"PT30M"},"payloads":[{"type":"GHG","values":[2]}]}`, `{"type":"GHG","values":[3]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T09:00:00+30m0s 2] [01T09:30:00+1h0m0s 3] [01T12:00:00+1h0m0s 1]"},
		"periods of intervals only": {event(dated, `{"id":1,"intervalPeriod":{"start":"2026-03-01T09:00:00Z","duration":"PT15M"},"payloads":[{"type":"GHG","values":[1]}]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T09:00:00+15m0s 1]"},
		"now": {event(dated+`,"intervalPeriod":{"start":"0001-01-01T00:00:00Z","duration":"PT2H"}`, `{"type":"SIMPLE","values":[3]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1" [01T11:00:00-01T13:00:00 none SIMPLE 3]`},
		"now, of a server that does not say when": {event(`"intervalPeriod":{"start":"0001-01-01","duration":"PT2H"}`, `{"type":"SIMPLE","values":[3]}`),
			`curtailment of site lisboa at 01T12:00:00: e1 "OpenADR event e1" [01T12:00:00-01T14:00:00 none SIMPLE 3]`},
		"for ever": {event(dated+`,"intervalPeriod":{"start":"2026-03-01T09:00:00Z","duration":"P9999Y"}`, `{"type":"SIMPLE","values":[3]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1" [01T09:00:00-01T16:00:00 none SIMPLE 3]`},
		"for ever, in future": {event(dated+`,"intervalPeriod":{"start":"2026-03-02T09:00:00Z","duration":"P9999Y"}`, `{"type":"SIMPLE","values":[3]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1" [02T09:00:00-02T13:00:00 none SIMPLE 3]`},
		"no duration at all": {event(dated+`,"intervalPeriod":{"start":"2026-03-01T12:00:00Z"}`, `{"type":"GHG","values":[5]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T12:00:00+2400h0m0s 5]"},
		"the event's duration": {event(dated+`,"duration":"PT3H","intervalPeriod":{"start":"2026-03-01T12:00:00Z"}`, `{"type":"SIMPLE","values":[2]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1" [01T12:00:00-01T15:00:00 none SIMPLE 2]`},
		"a random start": {event(dated+`,"intervalPeriod":{"start":"2026-03-01T12:00:00Z","duration":"PT1H","randomizeStart":"PT10M"}`, `{"type":"SIMPLE","values":[2]},{"type":"GHG","values":[5]}`),
			"forecast of site lisboa " + at + " e1 marginal gCO2/kWh [01T12:00:00+1h0m0s 5]\ncurtailment of site lisboa " + at + ` e1 "OpenADR event e1" [01T12:05:00-01T13:00:00 none SIMPLE 2]`},
		"a random start beyond the end": {event(dated+`,"intervalPeriod":{"start":"2026-03-01T12:00:00Z","duration":"PT1M","randomizeStart":"PT10M"}`, `{"type":"SIMPLE","values":[2]}`),
			"curtailment of site lisboa " + at + ` e1 "OpenADR event e1"`},
		"types that are not known": {event(hourly, `{"type":"CURVE","values":[{"x":1,"y":2}]},{"type":"OLS","values":[0.1,0.2]}`), ""},
		"no intervals":             {event(hourly), ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseEvent([]byte(c.event))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Map(e, options(), t0)
			if err != nil || lines(got) != c.want {
				t.Errorf("%v\n%s\nwant\n%s", err, lines(got), c.want)
			}
		})
	}
}

func TestEventsThatCannotBeRightAreRefused(t *testing.T) {
	price := `{"type":"PRICE","values":[1]}`
	limit := `{"type":"IMPORT_CAPACITY_LIMIT","values":[1]}`
	for name, c := range map[string]struct{ event, want string }{
		"no object":                {`[]`, "event"},
		"no id":                    {`{}`, "want an id"},
		"control character":        {`{"id":"a\nb"}`, "control character"},
		"naive time":               {event(dated+`,"intervalPeriod":{"start":"2026-03-01T13:00:00"}`, price), "RFC 3339 with an offset"},
		"time is a number":         {event(dated+`,"intervalPeriod":{"start":5}`, price), "a time is a text"},
		"too many intervals":       {event(hourly, make([]string, 4097)...), "4097 intervals"},
		"no start":                 {event(dated, `{"type":"GHG","values":[1]}`), "has a start"},
		"behind one without end":   {event(dated+`,"intervalPeriod":{"start":"2026-03-01T12:00:00Z"}`, `{"type":"GHG","values":[1]}`, `{"type":"GHG","values":[1]}`), "no end"},
		"duration in words":        {event(dated+`,"intervalPeriod":{"start":"2026-03-01T12:00:00Z","duration":"1h"}`, `{"type":"GHG","values":[1]}`), "no ISO 8601 duration"},
		"own duration in words":    {event(hourly, `{"id":3,"intervalPeriod":{"duration":"1h"},"payloads":[]}`), "interval 3"},
		"event's duration":         {event(hourly+`,"duration":"x"`, `{"type":"GHG","values":[1]}`), "no ISO 8601 duration"},
		"random start for ever":    {event(dated+`,"intervalPeriod":{"start":"2026-03-01T12:00:00Z","randomizeStart":"P9999Y"}`, `{"type":"GHG","values":[1]}`), "randomizeStart"},
		"price without descriptor": {event(hourly, price), "payloadDescriptor"},
		"price of gas":             {event(hourly+`,"payloadDescriptors":[{"payloadType":"PRICE","units":"THERMS","currency":"USD"}]`, price), "THERMS"},
		"price in pounds":          {event(hourly+`,"payloadDescriptors":[{"payloadType":"PRICE","units":"KWH","currency":"GBP"}]`, price), "GBP"},
		"GHG in other units":       {event(hourly+`,"payloadDescriptors":[{"payloadType":"GHG","units":"KWH"}]`, `{"type":"GHG","values":[1]}`), "want GHG"},
		"GHG below zero":           {event(hourly, `{"type":"GHG","values":[-1]}`), "negative"},
		"GHG in words":             {event(hourly, `{"type":"GHG","values":["low"]}`), "no number"},
		"GHG twice":                {event(hourly, `{"type":"GHG","values":[1,2]}`), "2 values"},
		"GHG without a value":      {event(hourly, `{"type":"GHG","values":[]}`), "0 values"},
		"GHG beyond numbers":       {event(hourly, `{"type":"GHG","values":[1e999]}`), "no number"},
		"SIMPLE 4":                 {event(hourly, `{"type":"SIMPLE","values":[4]}`), "0, 1, 2 or 3"},
		"SIMPLE 1.5":               {event(hourly, `{"type":"SIMPLE","values":[1.5]}`), "0, 1, 2 or 3"},
		"SIMPLE null":              {event(hourly, `{"type":"SIMPLE","values":[null]}`), "0, 1, 2 or 3"},
		"limit without unit":       {event(hourly, limit), "want KW"},
		"limit in amps":            {event(hourly+`,"payloadDescriptors":[{"payloadType":"IMPORT_CAPACITY_LIMIT","units":"AMPS"}]`, limit), "AMPS"},
		"limit below zero":         {event(hourly+`,"payloadDescriptors":[{"payloadType":"IMPORT_CAPACITY_LIMIT","units":"KW"}]`, strings.Replace(limit, "1", "-1", 1)), "outside"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseEvent([]byte(c.event))
			if err == nil {
				_, err = Map(e, options(), t0)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want …%s…", err, c.want)
			}
		})
	}
}

func TestDurations(t *testing.T) {
	for s, want := range map[string]string{
		"PT1H": "01T13:00:00", "PT90M": "01T13:30:00", "PT0.5S": "01T12:00:00", "P1D": "02T12:00:00", "P1W": "08T12:00:00",
		"P1Y2M3DT4H5M6S": "04T16:05:06", "PT0S": "01T12:00:00", "P1M": "01T12:00:00", "P9999Y": "", "PT36H": "03T00:00:00",
	} {
		d, err := ParseDuration(s)
		end := d.After(t0)
		if err != nil || want == "" != end.IsZero() || want != "" && clock(end) != want {
			t.Errorf("%s: %s %v, want %s", s, clock(end), err, want)
		}
	}
	if d, _ := ParseDuration("P1Y2M"); d.After(t0).Format(time.DateOnly) != "2027-05-01" {
		t.Errorf("%+v", d)
	}
	for _, s := range []string{"", "P", "PT", "P1", "T1H", "1H", "-PT1H", "P-1D", "PT1H1H", "PT1M1H", "P1H", "PT1D", "P1.5D", "PT1.5H", "PT.5S", "PT1.S", "PT1,5S",
		"P1DT", "PT1H ", "p1d", "P99999Y", "P1e3D", "PT99999999999999999999S", "P200000D", "PTT1H", "P1YT1HT1M", strings.Repeat("P", 50)} {
		if d, err := ParseDuration(s); err == nil {
			t.Errorf("%q became %+v", s, d)
		}
	}
}

func TestTheJitterOfAnEventIsItsOwnAndStays(t *testing.T) {
	var o Options
	o.Target = lisboa
	o.defaults()
	seen := map[float64]bool{}
	for i := range 100 {
		id := fmt.Sprint("event", i)
		v := o.Jitter(id)
		if v < 0 || v >= 1 || v != o.Jitter(id) {
			t.Errorf("%s: %v", id, v)
		}
		seen[v] = true
	}
	if len(seen) < 100 {
		t.Errorf("%d of 100", len(seen))
	}
}

func FuzzEvent(f *testing.F) {
	f.Add([]byte(event(hourly, `{"type":"GHG","values":[80]}`, `{"type":"SIMPLE","values":[2]}`)))
	f.Add([]byte(event(dated+`,"intervalPeriod":{"start":"0001-01-01","duration":"P9999Y","randomizeStart":"PT1H"},"priority":3`, `{"type":"ALERT_OTHER","values":["x"]}`)))
	f.Add([]byte(event(hourly+`,"payloadDescriptors":[{"payloadType":"PRICE","units":"KWH","currency":"USD"}]`, `{"type":"PRICE","values":[1e308]}`)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := ParseEvent(raw)
		if err != nil {
			return
		}
		messages, err := Map(e, options(), t0)
		if err != nil {
			return
		}
		for _, m := range messages {
			if m.Curtailment != nil {
				for _, d := range m.Curtailment.Demands {
					if !d.Start.Before(d.Until) {
						t.Errorf("a demand from %s to %s", d.Start, d.Until)
					}
				}
			}
			for _, p := range m.Points {
				if p.Period <= 0 {
					t.Errorf("a point of %s", p.Period)
				}
			}
		}
		if _, err := Cancel(e, options(), t0); err != nil {
			t.Error(err)
		}
	})
}
