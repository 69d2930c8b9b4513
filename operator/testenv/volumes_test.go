package testenv

import "testing"

func TestPathsOfMountsAreReplacedAsAWholeAndOnce(t *testing.T) {
	m := mounts{"/tmp": "/tmp/host/t", "/data": "/tmp/host/d", "/data/text": "/tmp/host/x"}
	for in, want := range map[string]string{
		"--data=/data":              "--data=/tmp/host/d",
		"--data=/data/text/train":   "--data=/tmp/host/x/train",
		"/data,/tmp":                "/tmp/host/d,/tmp/host/t",
		"/database":                 "/database",
		"/var/data":                 "/var/data",
		"--log=/tmp/a:/data/text":   "--log=/tmp/host/t/a:/tmp/host/x",
		"plain":                     "plain",
		"":                          "",
		"redis://host:6379/0":       "redis://host:6379/0",
		"https://example.org/data/": "https://example.org/data/",
	} {
		if got := m.replace(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
