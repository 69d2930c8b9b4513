package nvml

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestAnAnswerIsOneValueWithAnID(t *testing.T) {
	for name, tc := range map[string]struct{ line, says string }{
		"nothing":            {"", "not an answer"},
		"no JSON":            {"Segmentation fault\n", "not an answer"},
		"a list":             {"[]", "not an answer"},
		"no id":              {`{"samples":[]}`, "no id"},
		"two values":         {`{"id":1}{"id":2}`, "more than one"},
		"bytes behind":       {`{"id":1} x`, "more than one"},
		"a negative counter": {`{"id":1,"samples":[{"uuid":"GPU-1","energyMillijoules":-1}]}`, "not an answer"},
		"no reason":          {`{"id":1,"unavailable":true}`, "without an error"},
		"a limit from hell":  {`{"id":1,"beforeWatts":-5}`, "-5 W before"},
		"cut off":            {`{"id":1,"samples":[{"uuid":"GPU-`, "not an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			if a, err := ParseAnswer([]byte(tc.line)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%+v, %v; want %q", a, err, tc.says)
			}
		})
	}
}

func TestFiguresThatCannotBeAreLeftOut(t *testing.T) {
	const line = `{"id":7,"samples":[{"uuid":"GPU-1","powerWatts":4294967.295,"utilisationPercent":101,"temperatureC":-3,"powerLimitWatts":300}],
"inventory":{"gpus":[{"uuid":"GPU-1","memoryBusyPercent":200,"clockMHz":-4,"powerWatts":80,"unknown":1}]}}` + "\n"
	a, err := ParseAnswer([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	limit, power := 300.0, 80.0
	if want := []GPUSample{{UUID: "GPU-1", PowerLimitWatts: &limit}}; !reflect.DeepEqual(a.Samples, want) {
		t.Errorf("samples %+v", a.Samples)
	}
	if want := (GPU{GPUSample: GPUSample{UUID: "GPU-1", PowerWatts: &power}}); !reflect.DeepEqual(a.Inventory.GPUs[0], want) {
		t.Errorf("GPU %+v", a.Inventory.GPUs[0])
	}
}

func TestEveryFailureHasAWayOutButTheClientsEnd(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(source)) {
		_, rest, ok := strings.Cut(line, ` Code = "`)
		if !ok {
			continue
		}
		n++
		code, _, _ := strings.Cut(rest, `"`)
		if way := (&Error{Code: Code(code)}).WayOut(); (way == "") != (Code(code) == Closed) {
			t.Errorf("%s: %q", code, way)
		}
	}
	if n != len(waysOut)+1 {
		t.Errorf("%d codes, %d ways out", n, len(waysOut))
	}
}

// Whatever a child writes, reading it ends, and what is taken can be written again.
func FuzzParseAnswer(f *testing.F) {
	for _, line := range []string{
		`{"id":1,"samples":[{"uuid":"GPU-1","energyMillijoules":18446744073709551615,"powerWatts":1e308}]}`,
		`{"id":2,"inventory":{"driverVersion":"550","gpus":[{"uuid":"GPU-1","mig":{"enabled":true,"instances":[{"uuid":"MIG-1","memoryBytes":1}]}}]}}`,
		`{"id":3,"error":{"code":"gpuLost","detail":"GPU 1: gone"}}`,
		`{"id":4,"unavailable":true,"error":{"code":"noLibrary"}}`,
		`{"id":5,"beforeWatts":700}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		a, err := ParseAnswer(line)
		if err != nil {
			return
		}
		if a.ID == 0 || a.Unavailable && a.Error == nil {
			t.Errorf("%+v", a)
		}
		for _, s := range a.Samples {
			if s.PowerWatts != nil && !possible(*s.PowerWatts, mostWatts) || s.UtilisationPercent != nil && !possible(*s.UtilisationPercent, 100) {
				t.Errorf("%+v", s)
			}
		}
		again, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := ParseAnswer(again); err != nil || b.ID != a.ID || len(b.Samples) != len(a.Samples) {
			t.Errorf("%s: %v", again, err)
		}
	})
}
