package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/siteagent/nvml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask a server that serves nobody else.
func ask(lib Library, r nvml.Request) nvml.Answer {
	r.ID = 1
	return New(lib).answer(r)
}

func TestAGPUIsDescribedByAllThatItTells(t *testing.T) {
	a := ask(&madeUp{devices: []*gpu{full(0)}}, nvml.Request{Op: nvml.OpInventory})
	if a.Error != nil {
		t.Fatal(a.Error)
	}
	want := nvml.Inventory{DriverVersion: "550.90.07", CUDAVersion: "12.4", GPUs: []nvml.GPU{{
		GPUSample: nvml.GPUSample{
			UUID: "GPU-0", Address: "10000:ab:1f.0", Model: "NVIDIA H100 80GB HBM3", EnergyMillijoules: new(uint64(123456789)), PowerWatts: new(684.5),
			UtilisationPercent: new(97.0), MemoryUsedBytes: new(uint64(1 << 30)), TemperatureC: new(40.0), PowerLimitWatts: new(700.0),
			MinimumPowerLimitWatts: new(200.0), MaximumPowerLimitWatts: new(700.0), DefaultPowerLimitWatts: new(700.0),
		},
		Serial: "1650", VBIOS: "96.00", Architecture: "hopper", Capability: "9.0", MemoryBytes: 80 << 30, MemoryBusyPercent: new(55.0),
		ClockMHz: 1755, MaxClockMHz: 1980, SlowdownC: new(87.0), Slowdowns: []string{"hardware thermal slowdown"}, Persistence: new(false),
		ComputeMode: "exclusive process", Virtual: "passthrough", Recovery: "drain and reset", Fabric: "completed with error 5",
		ECC:  &nvml.ECC{Enabled: true, Uncorrected: new(uint64(1)), Lifelong: new(uint64(3))},
		Rows: &nvml.Rows{Corrected: 1, Uncorrected: 2, Pending: true}, MIG: &nvml.MIG{Pending: true},
	}}}
	if !reflect.DeepEqual(*a.Inventory, want) {
		got, _ := json.MarshalIndent(a.Inventory, "", " ")
		t.Errorf("%s", got)
	}
}

func TestWhatAGPUDoesNotTellIsLeftOut(t *testing.T) {
	silent := &gpu{uuid: "GPU-0", name: "GRID", celsius: 1}
	a := ask(&madeUp{devices: []*gpu{silent}}, nvml.Request{Op: nvml.OpInventory})
	want := nvml.GPU{GPUSample: nvml.GPUSample{UUID: "GPU-0", Model: "GRID"}, Persistence: new(false)}
	if a.Error != nil || !reflect.DeepEqual(a.Inventory.GPUs, []nvml.GPU{want}) {
		t.Errorf("%+v, %v", a.Inventory, a.Error)
	}
}

func TestInstancesOfMIGAreNamedByTheirProfiles(t *testing.T) {
	g := full(0)
	g.most = 7
	g.instances = []*gpu{
		{uuid: "MIG-a", name: "NVIDIA H100 80GB HBM3 MIG 3g.40gb", celsius: 1, shares: &Shares{GPUSlices: 3, ComputeSlices: 3, Multiprocessors: 60, MemoryMiB: 40320}},
		nil,
		{uuid: "MIG-b", name: "NVIDIA H100 80GB HBM3", celsius: 1, shares: &Shares{GPUSlices: 1, ComputeSlices: 1, Multiprocessors: 16, MemoryMiB: 9984}},
		{uuid: "MIG-c", name: "old", celsius: 1, shares: &Shares{GPUSlices: 3, ComputeSlices: 1, MemoryMiB: 40320}},
		{uuid: "MIG-d", name: "dumb", celsius: 1},
	}
	a := ask(&madeUp{devices: []*gpu{g, full(1)}}, nvml.Request{Op: nvml.OpInventory})
	var got []string
	for _, i := range a.Inventory.GPUs[0].MIG.Instances {
		got = append(got, i.UUID+" "+i.Profile)
	}
	if want := []string{"MIG-a 3g.40gb", "MIG-b 1g.10gb", "MIG-c 1c.3g.40gb", "MIG-d "}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if m := a.Inventory.GPUs[1].MIG; m.Enabled || m.Instances != nil {
		t.Errorf("the GPU beside: %+v", m)
	}
}

func TestAGPUThatIsGoneIsToldApartFromTheOthers(t *testing.T) {
	lib := &madeUp{devices: []*gpu{full(0), full(1), full(2)}}
	s := New(lib)
	s.answer(nvml.Request{Op: nvml.OpSample})
	lib.devices[1].fails = &nvml.Error{Code: nvml.Lost, Detail: "GPU is lost"}
	lib.devices[2].celsius = 0 // its handle is given, but not more
	a := s.answer(nvml.Request{Op: nvml.OpSample})
	if a.Error != nil || len(a.Samples) != 3 || a.Samples[0].Problem != nil {
		t.Fatalf("%+v, %v", a.Samples, a.Error)
	}
	for i, g := range a.Samples[1:] {
		if g.Problem == nil || g.Problem.Code != nvml.Lost || g.UUID != lib.devices[i+1].uuid || g.PowerWatts != nil {
			t.Errorf("%+v, %v", g, g.Problem)
		}
	}
}

func TestAFailureOfTheWholeIsUnavailable(t *testing.T) {
	for name, lib := range map[string]*madeUp{
		"at the start":      {openError: &nvml.Error{Code: nvml.Mismatch, Detail: "Driver/library version mismatch"}},
		"while it is asked": {count: &nvml.Error{Code: nvml.NoDriver, Detail: "Driver Not Loaded"}},
		"of a kind unknown": {openError: errors.New("no idea")},
	} {
		t.Run(name, func(t *testing.T) {
			if a := ask(lib, nvml.Request{Op: nvml.OpSample}); !a.Unavailable || a.Error == nil {
				t.Errorf("%+v", a)
			}
		})
	}
	if a := ask(&madeUp{}, nvml.Request{Op: "dance"}); a.Unavailable || a.Error == nil || a.Error.Code != nvml.NotSupported {
		t.Errorf("another operation: %+v", a)
	}
}

func TestALimitIsSetWithinTheRangeAndPutBack(t *testing.T) {
	lib := &madeUp{devices: []*gpu{full(0), full(1)}}
	s := New(lib)
	set := func(uuid string, watts float64) nvml.Answer {
		return s.answer(nvml.Request{Op: nvml.OpSetPowerLimit, UUID: uuid, Watts: watts})
	}
	for _, watts := range []float64{199.9, 700.1, -1, 1e12} {
		if a := set("GPU-0", watts); a.Error == nil || a.Error.Code != nvml.OutOfRange || !strings.Contains(a.Error.Detail, "200 to 700 W") || a.Unavailable {
			t.Errorf("%g W: %+v", watts, a.Error)
		}
	}
	if a := set("GPU-7", 300); a.Error == nil || a.Error.Code != nvml.NotFound {
		t.Errorf("another GPU: %+v", a.Error)
	}
	if a := set("GPU-0", 400); a.Error != nil || *a.BeforeWatts != 700 {
		t.Errorf("%+v", a)
	}
	if a := set("GPU-0", 300.5); a.Error != nil || *a.BeforeWatts != 400 || lib.devices[0].limit != 300_500 {
		t.Errorf("%+v", a)
	}
	// An earlier process set the other one's.
	lib.devices[1].limit = 250_000
	a := s.answer(nvml.Request{Op: nvml.OpRestorePowerLimits, Originals: map[string]nvml.Limit{"GPU-0": {Before: 1, Set: 1}, "GPU-1": {Before: 650, Set: 250}}})
	if a.Error != nil || lib.devices[0].limit != 700_000 || lib.devices[1].limit != 650_000 || len(s.originals) != 0 {
		t.Errorf("%+v; limits %d and %d", a, lib.devices[0].limit, lib.devices[1].limit)
	}
	lib.devices[0].cannotSet = &nvml.Error{Code: nvml.NoPermission, Detail: "Insufficient Permissions"}
	if a := set("GPU-0", 400); a.Error == nil || a.Error.Code != nvml.NoPermission || len(s.originals) != 0 {
		t.Errorf("without permission: %+v, remembered %v", a.Error, s.originals)
	}
}

func TestALimitThatIsToStayOrIsSomebodyElsesIsNotPutBack(t *testing.T) {
	lib := &madeUp{devices: []*gpu{full(0), full(1), full(2)}}
	s := New(lib)
	set := func(i int, watts float64, keep bool) {
		t.Helper()
		if a := s.answer(nvml.Request{Op: nvml.OpSetPowerLimit, UUID: lib.devices[i].uuid, Watts: watts, Keep: keep}); a.Error != nil {
			t.Fatal(a.Error)
		}
	}
	set(0, 400, false)
	set(0, 650, true) // an earlier process left it behind
	set(1, 400, false)
	lib.devices[1].limit = 300_000 // a person's doing
	set(2, 400, false)
	lib.devices[2].limit = 600_000 // a person's doing, and capped again
	set(2, 400, false)
	if err := s.end(); err != nil {
		t.Error(err)
	}
	for i, want := range []uint32{650_000, 300_000, 600_000} {
		if got := lib.devices[i].limit; got != want {
			t.Errorf("GPU %d: %d mW, want %d", i, got, want)
		}
	}
}

// serve over pipes; the function ends the input and returns Serve's error.
func serve(lib Library) (ask func(op nvml.Op) nvml.Answer, end func() error) {
	in, requests := io.Pipe()
	answers, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- New(lib).Serve(in, out)
		_ = out.Close()
	}()
	lines := bufio.NewScanner(answers)
	ask = func(op nvml.Op) (a nvml.Answer) {
		line, _ := json.Marshal(nvml.Request{ID: 1, Op: op, UUID: "GPU-0", Watts: 300})
		_, _ = requests.Write(append(line, '\n'))
		lines.Scan()
		_ = json.Unmarshal(lines.Bytes(), &a)
		return a
	}
	return ask, func() error {
		_ = requests.Close()
		return <-done
	}
}

func TestTheDriverIsLetGoBetweenRequestsIfOthersKeepItAwake(t *testing.T) {
	for name, tc := range map[string]struct {
		gpus []*gpu
		open bool
	}{
		"persistence mode":       {[]*gpu{{uuid: "GPU-0", celsius: 1, persistence: true}}, false},
		"a process at work":      {[]*gpu{{uuid: "GPU-0", celsius: 1, processes: 1}}, false},
		"nothing":                {[]*gpu{{uuid: "GPU-0", celsius: 1}}, true},
		"one of two":             {[]*gpu{{uuid: "GPU-0", celsius: 1, processes: 1}, {uuid: "GPU-1", celsius: 1}}, true},
		"another is lost":        {[]*gpu{{uuid: "GPU-0", celsius: 1, persistence: true}, {fails: unsupported}}, false},
		"no GPU is left to wake": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := &madeUp{devices: tc.gpus}
				ask, end := serve(lib)
				for range 2 {
					ask(nvml.OpSample)
					time.Sleep(linger - 1)
					if synctest.Wait(); !lib.open() {
						t.Error("it is closed at once, though the next request may come soon")
					}
					time.Sleep(time.Hour)
					if synctest.Wait(); lib.open() != tc.open {
						t.Errorf("open %t, want %t", lib.open(), tc.open)
					}
				}
				if err := end(); err != nil || lib.open() {
					t.Errorf("in the end: %v, open %t", err, lib.open())
				}
			})
		})
	}
}

func TestTheEndOfTheInputPutsLimitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := &madeUp{devices: []*gpu{full(0)}}
		lib.devices[0].persistence = true
		ask, end := serve(lib)
		if a := ask(nvml.OpSetPowerLimit); a.Error != nil {
			t.Fatal(a.Error)
		}
		time.Sleep(time.Hour) // the library is closed meanwhile
		if err := end(); err != nil || lib.devices[0].limit != 700_000 || lib.open() {
			t.Errorf("%v, limit %d mW", err, lib.devices[0].limit)
		}
	})
}

func TestServingEndsWithAnErrorThatIsSaid(t *testing.T) {
	lost := &nvml.Error{Code: nvml.Lost, Detail: "GPU is lost"}
	t.Run("a request that is none", func(t *testing.T) {
		lib := &madeUp{}
		if err := New(lib).Serve(strings.NewReader("\n{\"id\":1,\"op\":\"sample\"}\nnonsense\n"), io.Discard); err == nil || !strings.Contains(err.Error(), "not a request") || lib.open() {
			t.Errorf("%v", err)
		}
	})
	t.Run("an output that is gone", func(t *testing.T) {
		in, out := io.Pipe()
		_ = in.Close()
		lib := &madeUp{}
		if err := New(lib).Serve(strings.NewReader("{\"id\":1,\"op\":\"sample\"}\n"), out); err == nil || lib.open() {
			t.Errorf("%v", err)
		}
	})
	t.Run("a limit that cannot be put back", func(t *testing.T) {
		lib := &madeUp{devices: []*gpu{full(0)}}
		s := New(lib)
		s.answer(nvml.Request{ID: 1, Op: nvml.OpSetPowerLimit, UUID: "GPU-0", Watts: 300})
		lib.devices[0].cannotSet = lost
		if err := s.Serve(strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), "back to 700 W") {
			t.Errorf("%v", err)
		}
	})
}
