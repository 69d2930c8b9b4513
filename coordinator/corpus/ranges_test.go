package corpus

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestRangesReadAsTheyAreWritten(t *testing.T) {
	at := Position{Samples: 9000, Pass: 3, Consumed: Ranges{{3, 0, 4096}, {3, 5000, 6000}, {4, 0, 512}}}
	b, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"samples":9000,"pass":3,"consumed":"3:0-4096,5000-6000 4:0-512"}`; string(b) != want {
		t.Errorf("%s\nwant %s", b, want)
	}
	var back Position
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, at) {
		t.Errorf("%+v, %v", back, err)
	}
	if b, err := json.Marshal(Position{Samples: 5}); err != nil || string(b) != `{"samples":5,"pass":0}` {
		t.Errorf("%s, %v", b, err)
	}
}

func FuzzRanges(f *testing.F) {
	for _, s := range []string{"", "0:0-1", "0:0-4096,5000-6000 1:0-512", "1:0-1 0:0-1", "0:5-5", "0:1-2,1-3", "18446744073709551615:0-18446744073709551615", "0:-1-2", "0", ":", "0:0-1,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var rs Ranges
		if err := rs.UnmarshalText([]byte(s)); err != nil {
			return
		}
		if err := rs.Check(); err != nil {
			t.Fatalf("%q was taken: %v", s, err)
		}
		var again Ranges
		if err := again.UnmarshalText([]byte(rs.String())); err != nil || !reflect.DeepEqual(again, rs) {
			t.Fatalf("%q reads as %v, written %q, reads as %v: %v", s, rs, rs.String(), again, err)
		}
		at := Position{Samples: 100, Pass: 1, Consumed: rs}
		l, err := New(Config{Samples: 100}, at)
		if (err == nil) != (at.Check() == nil) {
			t.Fatalf("%v is a position (%v) but not of a ledger, or the reverse: %v", rs, at.Check(), err)
		}
		if err == nil && l.After(nil).Consumed.Size() > 200 {
			t.Fatalf("%v has more than two passes", rs)
		}
	})
}
