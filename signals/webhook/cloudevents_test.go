package webhook_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
)

// data of a value of lisboa.
func data(value string, generated time.Duration) string {
	return fmt.Sprintf(`{"site":"lisboa","kind":"marginal","unit":"gCO2/kWh","points":[{"start":%q,"duration_s":300,"value":%s}],"generated_at":%q}`,
		stamp(0), value, stamp(generated))
}

func cloudEvent(id, data string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/grid","type":"energy.signal.observed","ext":1,"data":%s}`, id, data)
}

func TestStructuredCloudEvents(t *testing.T) {
	r := newRig(t, nil)
	structured := header("Content-Type", "application/cloudevents+json; charset=UTF-8")
	r.want(202, signalpush.Stored, cloudEvent("a", data("1", 0)), structured)
	r.shows(first)
	// The event's own identity counts under a new delivery, too, whatever its form.
	r.want(200, signalpush.Duplicate, strings.ReplaceAll(cloudEvent("a", data("1", 0)), ",", ", "), structured)
	r.want(409, signalpush.Refused, cloudEvent("a", data("2", 0)), structured)
	r.shows()
	encoded := fmt.Sprintf(`"data_base64":%q`, base64.StdEncoding.EncodeToString([]byte(data("2", 0))))
	r.want(202, signalpush.Stored, strings.Replace(cloudEvent("b", "{}"), `"data":{}`, encoded, 1), structured)
	r.shows(second)
	// The time of a signed event stands in for generated_at.
	timed := strings.Replace(cloudEvent("c", strings.Replace(data("1", 0), `,"generated_at":"`+stamp(0)+`"`, "", 1)), `"ext"`, `"time":"`+stamp(time.Second)+`","ext"`, 1)
	r.want(202, signalpush.Stored, timed, structured)
	r.shows(first)
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"other version":   {strings.Replace(cloudEvent("d", data("1", 0)), "1.0", "0.3", 1), 400},
		"no id":           {strings.Replace(cloudEvent("d", data("1", 0)), `"id":"d",`, "", 1), 400},
		"long id":         {cloudEvent(strings.Repeat("d", 201), data("1", 0)), 400},
		"both data":       {strings.Replace(cloudEvent("d", data("1", 0)), `"ext"`, encoded+`,"ext"`, 1), 400},
		"no data":         {strings.Replace(cloudEvent("d", data("1", 0)), `"data"`, `"date"`, 1), 422},
		"other type":      {strings.Replace(cloudEvent("d", data("1", 0)), "observed", "seen", 1), 422},
		"data in XML":     {strings.Replace(cloudEvent("d", data("1", 0)), `"ext"`, `"datacontenttype":"text/xml","ext"`, 1), 422},
		"naive time":      {strings.Replace(cloudEvent("d", data("1", 0)), `"ext"`, `"time":"2026-03-01T12:00:00","ext"`, 1), 422},
		"a batch":         {"[" + cloudEvent("d", data("1", 0)) + "]", 422},
		"NaN in an event": {cloudEvent("d", data("NaN", 0)), 422},
	} {
		if got := r.want(c.status, signalpush.Refused, c.body, structured); t.Failed() {
			t.Fatal(name, got)
		}
	}
	r.shows()
}

func TestBinaryCloudEvents(t *testing.T) {
	r := newRig(t, nil)
	binary := func(id string, more ...string) func(*http.Request) {
		return func(req *http.Request) {
			for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": "/grid%20west", "ce-type": "energy.signal.observed"} {
				req.Header.Set(name, value)
			}
			if len(more) == 2 {
				req.Header.Set(more[0], more[1])
			}
		}
	}
	r.want(202, signalpush.Stored, data("1", 0), binary("a"))
	r.want(200, signalpush.Duplicate, data("1", 0), binary("a"))
	r.want(409, signalpush.Refused, data("2", 0), binary("a"))
	r.want(409, signalpush.Refused, data("1", 0), binary("a", "ce-type", "energy.signal.forecast"))
	r.shows(first)
	// A signed delivery whose attributes were changed on the way is another one.
	b := data("2", 0)
	r.want(202, signalpush.Stored, b, r.id("x", b), binary("b"))
	r.want(409, signalpush.Refused, b, r.id("x", b), binary("b", "ce-type", "energy.signal.forecast"))
	r.shows(second)
	// ce-time is not signed and orders nothing.
	undated := strings.Replace(data("3", 0), `,"generated_at":"`+stamp(0)+`"`, "", 1)
	r.want(422, signalpush.Refused, undated, binary("c", "ce-time", stamp(0)))
	r.want(400, signalpush.Refused, data("3", 0), binary("c", "ce-specversion", "2.0"))
	r.want(400, signalpush.Refused, data("3", 0), binary("c", "ce-source", "%zz"))
	r.want(400, signalpush.Refused, data("3", 0), binary("c", "ce-source", "%ff"))
	r.want(400, signalpush.Refused, data("3", 0), binary("c", "ce-source", "a%0Ab"))
	r.want(400, signalpush.Refused, data("3", 0), binary(""))
	r.want(400, signalpush.Refused, data("3", 0), binary("c"), func(req *http.Request) { req.Header.Add("ce-id", "d") })
	r.want(400, signalpush.Refused, "{", binary("c"))
	r.want(422, signalpush.Refused, data("NaN", 0), binary("c"))
	r.shows()
}

func TestBatchesOfCloudEvents(t *testing.T) {
	r := newRig(t, nil)
	batch := header("Content-Type", "application/cloudevents-batch+json")
	many := func(n int) string {
		events := make([]string, n)
		for i := range events {
			events[i] = cloudEvent(fmt.Sprintf("e%d", i), data(fmt.Sprint(i), time.Duration(i)*time.Second))
		}
		return "[" + strings.Join(events, ",") + "]"
	}
	got := r.want(202, signalpush.Stored, many(32), batch)
	if len(got.Events) != 32 || slices.ContainsFunc(got.Events, func(x signalpush.Result) bool { return x != signalpush.Stored }) {
		t.Errorf("%+v", got)
	}
	// One stream is shown once, as it is after the batch.
	r.shows("site lisboa: marginal 31 gCO2/kWh at 12:00 for 5m0s, ok from meter")
	r.want(422, signalpush.Refused, many(33), batch)
	r.want(422, signalpush.Refused, "[]", batch)
	r.want(422, signalpush.Refused, "{}", batch)

	got = r.want(202, signalpush.Stored, "["+strings.Join([]string{
		cloudEvent("e31", data("31", 31*time.Second)), // known
		cloudEvent("new1", data("7", 0)),              // older
		cloudEvent("new2", data("8", 40*time.Second)),
		cloudEvent("new2", data("8", 40*time.Second)), // twice in one batch
		cloudEvent("new3", strings.Replace(data("9", 0), `"site"`, `"valid_until":"`+stamp(0)+`","site"`, 1)),
		cloudEvent("new4", strings.Replace(data("9", 0), `lisboa`, `porto`, 1)),
	}, ",")+"]", batch)
	want := []signalpush.Result{signalpush.Duplicate, signalpush.Superseded, signalpush.Stored, signalpush.Duplicate, signalpush.Superseded, signalpush.Stored}
	if !slices.Equal(got.Events, want) {
		t.Errorf("%v, want %v", got.Events, want)
	}
	r.shows("site lisboa: marginal 8 gCO2/kWh at 12:00 for 5m0s, ok from meter", "site porto: marginal 9 gCO2/kWh at 12:00 for 5m0s, ok from meter")

	// One bad event refuses the whole, and says which.
	refused := r.want(422, signalpush.Refused, "["+cloudEvent("x1", data("1", time.Minute))+","+cloudEvent("x2", data("-1", 0))+"]", batch)
	if !strings.Contains(refused.Message, "event 1") {
		t.Errorf("%+v", refused)
	}
	r.want(403, signalpush.Refused, "["+cloudEvent("x1", data("1", time.Minute))+","+cloudEvent("x2", strings.Replace(data("1", 0), "lisboa", "berlin", 1))+"]", batch)
	r.want(409, signalpush.Refused, "["+cloudEvent("x1", data("1", time.Minute))+","+cloudEvent("x1", data("2", time.Minute))+"]", batch)
	r.shows()
}
