package webhook_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
	"girassol.dev/signals/webhook"
)

func TestEveryRefusalHasItsStatus(t *testing.T) {
	good := observed("87", 0)
	for name, c := range map[string]struct {
		body    string
		change  func(*http.Request)
		status  int
		reason  string
		message string
	}{
		"no content type":       {good, func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "UnsupportedContentType", ""},
		"text":                  {good, header("Content-Type", "text/plain"), 415, "UnsupportedContentType", ""},
		"other charset":         {good, header("Content-Type", "application/json; charset=latin1"), 415, "UnsupportedContentType", ""},
		"compressed":            {good, header("Content-Encoding", "gzip"), 415, "UnsupportedContentType", ""},
		"too large, said":       {strings.Repeat(" ", 256<<10+1), nil, 413, "TooLarge", "262144"},
		"too large, unsaid":     {strings.Repeat(" ", 256<<10+1), func(r *http.Request) { r.ContentLength = -1 }, 413, "TooLarge", ""},
		"no headers at all":     {good, func(r *http.Request) { strip(r) }, 400, "BadHeaders", "webhook-id"},
		"no timestamp":          {good, func(r *http.Request) { r.Header.Del(webhooksig.HeaderTimestamp) }, 400, "BadHeaders", "webhook-timestamp"},
		"broken signature":      {good, header(webhooksig.HeaderSignature, "v1"), 400, "BadHeaders", "webhook-signature"},
		"not JSON":              {"{", nil, 400, "BadBody", "JSON"},
		"no body":               {"", nil, 400, "BadBody", ""},
		"two documents":         {good + good, nil, 400, "BadBody", ""},
		"body ends early":       {good, func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), broken{})) }, 400, "BadBody", "early"},
		"other secret":          {good, func(r *http.Request) { resign(t, r, key('x'), good, t0) }, 401, "BadSignature", ""},
		"body re-serialised":    {good, replaceBody(strings.Replace(good, ":", ": ", 1)), 401, "BadSignature", "as it arrived"},
		"stale timestamp":       {good, func(r *http.Request) { resign(t, r, key('m'), good, t0.Add(-5*time.Minute-time.Second)) }, 401, "BadTimestamp", "5m0s"},
		"timestamp ahead":       {good, func(r *http.Request) { resign(t, r, key('m'), good, t0.Add(5*time.Minute+time.Second)) }, 401, "BadTimestamp", ""},
		"another source's name": {good, header(signalpush.HeaderSource, "grid"), 401, "BadSignature", ""},
		"a bearer token":        {good, func(r *http.Request) { strip(r); r.Header.Set("Authorization", "Bearer 0123456789abcdef") }, 401, "BadSignature", ""},
		"other site":            {strings.Replace(good, "lisboa", "berlin", 1), nil, 403, "TargetNotAllowed", "site berlin"},
		"site's name as region": {strings.Replace(good, `"site"`, `"region"`, 1), nil, 403, "TargetNotAllowed", "region lisboa"},
		"unknown type":          {strings.Replace(good, "observed", "guessed", 1), nil, 422, "Invalid", "unknown type"},
		"no type":               {`{"data":{}}`, nil, 422, "Invalid", "unknown type"},
		"no data":               {`{"type":"energy.signal.observed"}`, nil, 422, "Invalid", "no data"},
		"not an object":         {`[]`, nil, 422, "Invalid", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			change := c.change
			if change == nil {
				change = func(*http.Request) {}
			}
			got := r.want(c.status, signalpush.Refused, c.body, change)
			if got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
				t.Errorf("%+v, want %s: …%s…", got.Answer, c.reason, c.message)
			}
			r.shows()
		})
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func strip(r *http.Request) {
	for _, name := range []string{webhooksig.HeaderID, webhooksig.HeaderTimestamp, webhooksig.HeaderSignature} {
		r.Header.Del(name)
	}
}

func resign(t *testing.T, r *http.Request, secret, body string, at time.Time) {
	webhooksig.Set(r.Header, []webhooksig.Secret{parsed(t, secret)}, "msg_x", at, []byte(body))
}

func replaceBody(body string) func(*http.Request) {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
}

func TestDataThatCannotBeRightIs422(t *testing.T) {
	one := func(point string) string {
		return body(signalpush.Observed, `{"site":"lisboa","kind":"marginal","unit":"gCO2/kWh","points":[`+point+`]}`)
	}
	kinds := func(kind, unit, value string) string {
		return body(signalpush.Observed, fmt.Sprintf(`{"site":"lisboa","kind":%q,"unit":%q,"points":[{"start":%q,"duration_s":300,"value":%s}]}`, kind, unit, stamp(0), value))
	}
	at := `"start":"` + stamp(0) + `","duration_s":300`
	for name, c := range map[string]struct{ body, message string }{
		"no unit":                {kinds("marginal", "", "1"), `marginal is not given in ""`},
		"unit of another kind":   {kinds("marginal", "EUR/MWh", "1"), "not given in"},
		"percentile in grams":    {kinds("percentile", "gCO2/kWh", "1"), "not given in"},
		"unknown kind":           {kinds("warmth", "gCO2/kWh", "1"), "unknown kind"},
		"NaN":                    {kinds("price", "EUR/MWh", "NaN"), "NaN is no value: send null"},
		"infinity":               {kinds("price", "EUR/MWh", "Infinity"), "Infinity is no value"},
		"minus infinity":         {kinds("price", "EUR/MWh", "-Infinity"), "Infinity is no value"},
		"too large a number":     {kinds("price", "EUR/MWh", "1e999"), "no number that can be held"},
		"NaN in words":           {kinds("marginal", "gCO2/kWh", `"NaN"`), "not the text"},
		"a number in words":      {kinds("marginal", "gCO2/kWh", `"12"`), "not the text"},
		"negative intensity":     {kinds("marginal", "gCO2/kWh", "-0.1"), "negative"},
		"negative average":       {kinds("average", "lbCO2/MWh", "-1"), "negative"},
		"percentile beyond 100":  {kinds("percentile", "percentile", "101"), "outside 0 to 100"},
		"value is an object":     {kinds("marginal", "gCO2/kWh", "{}"), "no number"},
		"start without offset":   {one(`{"start":"2026-03-01T12:00:00","duration_s":300,"value":1}`), "carries no offset"},
		"start is a number":      {one(`{"start":1772366400,"duration_s":300,"value":1}`), "a time is a text"},
		"start is a word":        {one(`{"start":"noon","duration_s":300,"value":1}`), "RFC 3339"},
		"no start":               {one(`{"duration_s":300,"value":1}`), "no start"},
		"no duration":            {one(`{"start":"2026-03-01T12:00:00Z","value":1}`), "duration_s 0"},
		"negative duration":      {one(`{"start":"2026-03-01T12:00:00Z","duration_s":-1,"value":1}`), "duration_s -1"},
		"endless duration":       {one(`{"start":"2026-03-01T12:00:00Z","duration_s":1e300,"value":1}`), "duration_s 1e+300"},
		"tiny duration":          {one(`{"start":"2026-03-01T12:00:00Z","duration_s":1e-12,"value":1}`), "holds for 0s"},
		"year 1":                 {one(`{"start":"0001-01-01T00:00:00Z","duration_s":300,"value":1}`), "outside the years"},
		"year 9999":              {one(`{"start":"9999-01-01T00:00:00Z","duration_s":300,"value":1}`), "outside the years"},
		"observed in the future": {one(`{"start":"2026-03-01T12:10:01Z","duration_s":300,"value":1}`), "nothing can be observed"},
		"points overlap":         {one(`{` + at + `,"value":1},{` + at + `,"value":2}`), "overlap"},
		"no points":              {one(""), "no points"},
		"misspelt value":         {one(`{` + at + `,"vlaue":1}`), "vlaue"},
		"misspelt field":         {body(signalpush.Observed, `{"site":"lisboa","generatedAt":"2026-03-01T12:00:00Z"}`), "generatedAt"},
		"site and region":        {strings.Replace(observed("1", 0), `"site":"lisboa"`, `"site":"lisboa","region":"pt"`, 1), "one of the two"},
		"neither":                {strings.Replace(observed("1", 0), `"site":"lisboa",`, "", 1), "one of the two"},
		"no generated_at":        {strings.Replace(observed("1", 0), `,"generated_at":"`+stamp(0)+`"`, "", 1), "no generated_at"},
		"generated_at ahead":     {observed("1", 5*time.Minute+time.Second), "generated_at lies 5m1s ahead"},
		"data is a list":         {body(signalpush.Observed, `[]`), "data"},
		"data in text":           {body(signalpush.Observed, `"{}"`), "data"},
		"end before start":       {body(signalpush.CurtailmentStarted, `{"site":"lisboa","start":"2026-03-01T12:00:00Z","end":"2026-03-01T11:00:00Z"}`), "not after start"},
		"negative limit":         {body(signalpush.CurtailmentStarted, `{"site":"lisboa","limit_w":-1}`), "limit of -1 W"},
		"an end with a limit":    {body(signalpush.CurtailmentEnded, `{"site":"lisboa","limit_w":1}`), "no start, end or limit_w"},
		"control character":      {body(signalpush.CurtailmentEnded, `{"site":"lisboa","id":"a\nb"}`), "control character"},
		"override without end":   {body(signalpush.Override, `{"site":"lisboa","action":"on"}`), "no valid_until"},
		"override for months":    {body(signalpush.Override, `{"site":"lisboa","action":"on","valid_until":"2026-06-01T12:00:00Z"}`), "too long"},
		"override of what":       {body(signalpush.Override, `{"site":"lisboa","action":"maybe","valid_until":"2026-03-01T13:00:00Z"}`), "unknown action"},
		"power without unit":     {kinds("available_power", "", "1"), "not given in"},
		"power in grams":         {kinds("available_power", "gCO2/kWh", "1"), "not given in"},
		"negative power":         {kinds("available_power", "kW", "-1"), "limit of -1000 W"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			if got := r.want(422, signalpush.Refused, c.body); !strings.Contains(got.Message, c.message) {
				t.Errorf("%+v, want …%s…", got.Answer, c.message)
			}
			r.shows()
		})
	}
}

func TestWhatIsTaken(t *testing.T) {
	forecast := `{"region":"pt","kind":"price","unit":"EUR/MWh","points":[` +
		`{"start":"2026-03-01T14:00:00+01:00","duration_s":3600,"value":null},{"start":"2026-03-01T12:00:00Z","duration_s":3600,"value":-5.5}],` +
		`"generated_at":"2026-03-01T11:00:00Z","valid_until":"2026-03-02T12:00:00Z"}`
	for name, c := range map[string]struct {
		body string
		want string
	}{
		"a value":              {observed("87", 0), "site lisboa: marginal 87 gCO2/kWh at 12:00 for 5m0s, ok from meter"},
		"zero":                 {observed("0", 0), "site lisboa: marginal 0 gCO2/kWh at 12:00 for 5m0s, ok from meter"},
		"null":                 {observed("null", 0), "site lisboa: marginal none gCO2/kWh at 12:00 for 5m0s, ok from meter"},
		"absent":               {strings.Replace(observed("0", 0), `,"value":0`, "", 1), "site lisboa: marginal none omitted gCO2/kWh at 12:00 for 5m0s, ok from meter"},
		"estimated":            {strings.Replace(observed("87", 0), `"site"`, `"estimated":true,"site"`, 1), "site lisboa: marginal 87 gCO2/kWh at 12:00 for 5m0s, estimated from meter"},
		"traffic light":        {strings.NewReplacer("marginal", "traffic_light", "gCO2/kWh", "level").Replace(observed("-1", 0)), "site lisboa: traffic_light -1 level at 12:00 for 5m0s, ok from meter"},
		"a forecast, unsorted": {body(signalpush.Forecast, forecast), "region pt: forecast price EUR/MWh 12:00=-5.5 13:00=none from meter "},
		"a curtailment":        {body(signalpush.CurtailmentStarted, `{"site":"porto","end":"2026-03-01T13:00:00Z","limit_w":0}`), `site porto: curtailment "" from 12:00 to 01T13:00 limit 0`},
		"one without an end":   {body(signalpush.CurtailmentStarted, `{"site":"porto","id":"a"}`), `site porto: curtailment "a" from 12:00 to 01T16:00 limit none`},
		"its end":              {body(signalpush.CurtailmentEnded, `{"site":"porto","id":"a"}`), `site porto: curtailment "a" ended`},
		"an override":          {body(signalpush.Override, `{"site":"porto","action":"off","reason":"works","valid_until":"2026-03-01T18:00:00Z"}`), `site porto: override off until 01T18:00 (works)`},
		"its end, too":         {body(signalpush.Override, `{"site":"porto","action":"auto"}`), `site porto: override auto until 01T00:00 ()`},
		"a limit on power":     {strings.NewReplacer("marginal", "available_power", "gCO2/kWh", "kW").Replace(observed("1.5", 0)), `site lisboa: curtailment "available_power" from 12:00 to 01T12:05 limit 1500`},
		"no limit any more":    {strings.NewReplacer("marginal", "available_power", "gCO2/kWh", "kW").Replace(observed("null", 0)), `site lisboa: curtailment "available_power" ended`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			got := r.want(202, signalpush.Stored, c.body)
			r.shows(c.want)
			if got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", got.header)
			}
			r.start() // what is shown again after a restart is the same
			r.shows(c.want)
		})
	}
}

func TestASourceIsHeldToItsRate(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) {
		c.Senders[0].PerMinute, c.Senders[0].Burst = 6, 2
		c.Senders = append(c.Senders, webhook.Sender{Name: "grid", SecretFiles: []string{write(t, t.TempDir()+"/grid.key", key('g'))}, Sites: []string{"lisboa"}})
	})
	r.want(202, signalpush.Stored, observed("1", 0))
	r.want(202, signalpush.Stored, observed("2", 0))
	got := r.want(429, signalpush.Refused, observed("3", 0))
	if got.header.Get("Retry-After") != "10" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	// Nobody else is held up, and who cannot sign does not use up a source's rate.
	r.want(202, signalpush.Stored, observed("4", 0), func(req *http.Request) { r.sign(req, key('g'), "a", observed("4", 0)) })
	r.clock.advance(9 * time.Second)
	r.want(401, signalpush.Refused, observed("5", 0), func(req *http.Request) { r.sign(req, key('x'), "a", observed("5", 0)) })
	if got := r.want(429, signalpush.Refused, observed("5", 0)); got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	r.clock.advance(time.Second)
	r.want(202, signalpush.Stored, observed("6", 0))
	r.clock.advance(-5 * time.Minute) // set back: no storm, no lock-out
	r.want(429, signalpush.Refused, observed("7", -time.Hour))
	r.clock.advance(10 * time.Second)
	r.want(200, signalpush.Superseded, observed("7", -time.Hour))
}

func TestTooManyRequestsAtOnceAreAskedToComeAgain(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.InFlight = 1 })
	inside, leave := make(chan struct{}), make(chan struct{})
	slow := r.request(observed("1", 0))
	slow.Body = io.NopCloser(io.MultiReader(readerFunc(func([]byte) (int, error) {
		close(inside)
		<-leave
		return 0, io.EOF
	}), strings.NewReader(observed("1", 0))))
	done := make(chan reply)
	go func() { done <- r.do(slow) }()
	<-inside
	got := r.want(429, signalpush.Refused, observed("2", 0))
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	close(leave)
	if got := <-done; got.status != 202 {
		t.Errorf("%+v", got)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestHandshakes(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.AllowedOrigins = []string{"grid.example"} })
	get := func(method, target, origin string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, target, nil)
		if origin != "" {
			req.Header.Set("WebHook-Request-Origin", origin)
		}
		w := httptest.NewRecorder()
		r.h.ServeHTTP(w, req)
		return w
	}
	w := get("GET", "/v1/signals?echo=%3Cb%3E42", "")
	if w.Code != 200 || w.Body.String() != "<b>42" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
	}
	w = get("OPTIONS", "/v1/signals", "grid.example")
	if w.Code != 200 || w.Header().Get("WebHook-Allowed-Origin") != "grid.example" || w.Header().Get("WebHook-Allowed-Rate") != "120" || w.Header().Get("Allow") != "GET, OPTIONS, POST" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	for name, c := range map[string]struct {
		method, target, origin string
		status                 int
	}{
		"no echo":      {"GET", "/v1/signals", "", 405},
		"long echo":    {"GET", "/v1/signals?echo=" + strings.Repeat("a", 513), "", 405},
		"put":          {"PUT", "/v1/signals", "", 405},
		"no origin":    {"OPTIONS", "/v1/signals", "", 400},
		"other origin": {"OPTIONS", "/v1/signals", "evil.example", 403},
	} {
		w := get(c.method, c.target, c.origin)
		if w.Code != c.status || w.Header().Get("Allow") == "" && c.status == 405 || w.Header().Get("WebHook-Allowed-Origin") != "" {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
	}
}
