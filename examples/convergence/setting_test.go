package main

import (
	"slices"
	"testing"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

func TestSitesAreAwayHalfOfTheRoundsAndNeverAll(t *testing.T) {
	for _, churn := range []string{half, twice, spells} {
		for _, sites := range []int{2, 4, 16} {
			s := setting{Churn: churn, Sites: sites, Rounds: 400, Seed: 3}
			present := s.present()
			if len(present) != s.length() {
				t.Fatalf("%s: %d rounds, want %d", churn, len(present), s.length())
			}
			there := 0
			for n, p := range present {
				if !slices.Contains(p, true) {
					t.Errorf("%s: nobody in round %d", churn, n)
				}
				for _, on := range p {
					if on {
						there++
					}
				}
			}
			share := float64(there) / float64(sites*len(present))
			// Two sites would both be away in a quarter of the rounds; one is put there.
			if share < 0.4 || share > 0.66 {
				t.Errorf("%s, %d sites: there in %.2f of the rounds", churn, sites, share)
			}
			if again := s.present(); !slices.EqualFunc(present, again, slices.Equal[[]bool]) {
				t.Errorf("%s: another draw of the same seed differs", churn)
			}
		}
	}
}

func TestWithoutChurnAllAreThere(t *testing.T) {
	for _, p := range (setting{Churn: noChurn, Sites: 3, Rounds: 5}).present() {
		if slices.Contains(p, false) {
			t.Fatalf("%v", p)
		}
	}
}

func TestVariantsAreRead(t *testing.T) {
	v, err := parseVariant("dm:up=32,down=16,eta=.7,mu=.5,rho=0,leave=flush,rule=members,upvalues=1bit,group=512")
	if err != nil {
		t.Fatal(err)
	}
	p := v.Params
	if p.Uplink.KeepOneIn != 32 || p.Downlink.KeepOneIn != 16 || p.OuterLearningRate != .7 || p.OuterMomentum != .5 || v.Rho != 0 || v.Rule != "members" ||
		p.Uplink.Values != algorithm.OneBit || p.Downlink.Values != algorithm.TwoBit || p.Downlink.GroupSize != 512 {
		t.Errorf("%+v", v)
	}
	if v.uplink(p, false).KeepOneIn != 32 || v.uplink(p, true).KeepOneIn != flushKeepOneIn {
		t.Errorf("the last update before a leave keeps one in %d", v.uplink(p, true).KeepOneIn)
	}
	if mu := v.at(0, 10, 1, nil).OuterMomentum; mu != 0 {
		t.Errorf("momentum %g alone", mu)
	}
	if v, err = parseVariant("dm:finish=.1,finishkeep=2"); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]int{0: 16, 17: 16, 18: 2, 19: 2} {
		if got := v.at(n, 20, 4, nil).Uplink.KeepOneIn; got != want {
			t.Errorf("round %d of 20 keeps one in %d, want %d", n, got, want)
		}
	}
	for _, bad := range []string{"", "adam", "dm:up", "dm:up=0", "dm:mu=1", "dm:nothing=1", "dm:rule=best", "dm:leave=run", "dm:finish=2", "dm:finishkeep=0", "fedavg:up=2", "dm:group=300", "dm:upvalues=3bit"} {
		if _, err := parseVariant(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestJobsLeaveOutWhatSaysNothing(t *testing.T) {
	o, err := parse([]string{"-sites", "1,2", "-seeds", "1,2", "-tasks", "mnist", "-variants", "dm;fedavg"}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := o.jobs()
	if err != nil {
		t.Fatal(err)
	}
	// Two sites in four combinations of split and churn, one site in one.
	if want := (4 + 1) * 2 * 2; len(jobs) != want {
		t.Errorf("%d jobs, want %d", len(jobs), want)
	}
	for _, args := range [][]string{
		{"-tasks", "cifar"}, {"-splits", "x"}, {"-churn", "x"}, {"-sites", "0"}, {"-seeds", "a"}, {"-variants", "x"}, {"-sites", "1", "-churn", "half"}, {"x"},
	} {
		o, err := parse(args, t.Output())
		if err == nil {
			_, err = o.jobs()
		}
		if err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

// What a federation has that sets nothing is what "dm" measures.
func TestVariantsWithoutKeysAreTheProducts(t *testing.T) {
	for name, spec := range map[string]v1alpha1.Strategy{"dm": v1alpha1.DecoupledMomentum, "diloco": v1alpha1.DiLoCo, "fedavg": v1alpha1.FedAvg} {
		plan, err := algorithm.FromSpec(v1alpha1.AlgorithmSpec{Strategy: spec})
		if err != nil {
			t.Fatal(err)
		}
		v := mustVariant(t, name)
		for _, members := range []int{1, 2, 16} {
			for _, agreement := range []*float64{nil, new(0.0), new(0.5)} {
				if got, want := v.at(3, 10, members, agreement), plan.ForVersion(4).ForCommit(members, agreement); got != want {
					t.Errorf("%s, %d members: %+v, want %+v", name, members, got, want)
				}
			}
		}
	}
	if v := mustVariant(t, "dm:mu=.6"); v.at(0, 10, 1, nil).OuterMomentum != 0.6 {
		t.Error("a momentum that is set is adapted")
	}
}
