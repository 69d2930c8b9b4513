package capacity

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"girassol.dev/api/provisioning"
)

func FuzzAnAnswerIsBoundedAndPollsTheSameHostOnly(f *testing.F) {
	for _, seed := range []string{`{"state":"Done"}`, `{"state":"Pending","poll":"/a/b?c"}`, `{"state":"Pending","poll":"//other/a"}`,
		`{"state":"Pending","poll":"https://a.example:444/"}`, `{"state":"Pending","poll":"https://u:p@a.example/"}`,
		`{"state":"Failed","message":"a\u0000b"}`, `{"state":"Pending","poll":"../../x"}`, `{"state":"Pending","poll":"mailto:a"}`, `[]`, `{"state":"Done"}{}`,
		`{"state":"Pending","poll":"?%zz"}`, `{"state":"Pending","poll":"\\\\b.example\\a"}`, `{"state":"Pending","poll":"/` + strings.Repeat("x", maxURL) + `"}`} {
		f.Add([]byte(seed))
	}
	from, err := url.Parse("https://a.example/wishes")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := parseAnswer(raw, from)
		if err != nil {
			if len(err.Error()) > 1024 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("error %q", err)
			}
			return
		}
		if a.State != provisioning.Pending && a.State != provisioning.Done && a.State != provisioning.Failed {
			t.Errorf("state %q", a.State)
		}
		if len(a.Message) > 516 || strings.ContainsAny(a.Message, "\n\r\x00") || !utf8.ValidString(a.Message) {
			t.Errorf("message %q", a.Message)
		}
		if a.Poll == "" {
			return
		}
		u, err := url.Parse(a.Poll)
		if err != nil || u.Scheme != "https" || u.Host != "a.example" || u.User != nil || len(a.Poll) > maxURL {
			t.Errorf("polls %q: %v", a.Poll, err)
		}
		if again := sameHost(from.String(), a.Poll); again != a.Poll {
			t.Errorf("%q becomes %q after a restart", a.Poll, again)
		}
	})
}
