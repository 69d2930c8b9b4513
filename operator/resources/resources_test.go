package resources

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// find gives one child as an object.
func find[T any](t *testing.T, children []runtime.ApplyConfiguration, what string) *T {
	t.Helper()
	for _, c := range children {
		if describe(c) == what {
			return as[T](t, c)
		}
	}
	t.Fatalf("there is no %s", what)
	return nil
}

func as[T any](t *testing.T, from any) *T {
	t.Helper()
	b, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	var o T
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatal(err)
	}
	return &o
}

func build(t *testing.T, f *v1alpha1.Federation, sites []v1alpha1.Site) []runtime.ApplyConfiguration {
	t.Helper()
	children, err := Federation(FederationInput{Federation: f, Sites: sites, Images: images})
	if err != nil {
		t.Fatal(err)
	}
	return children
}

func buildAgent(t *testing.T, f *v1alpha1.Federation, s *v1alpha1.Site, vendor v1alpha1.Vendor) *appsv1.DaemonSet {
	t.Helper()
	ds, err := Agent(AgentInput{Federation: f, Site: s, Vendor: vendor, GPUs: 8, Images: images})
	if err != nil {
		t.Fatal(err)
	}
	return as[appsv1.DaemonSet](t, ds)
}

func TestTheCoordinatorsConfigurationHoldsWhatARoundNeedsAndNothingElse(t *testing.T) {
	f, sites := full()
	text := find[corev1.ConfigMap](t, build(t, f, sites), "ConfigMap-lm-coordinator").Data[ConfigKey]
	docs := strings.Split(text, "---\n")
	if len(docs) != 4 {
		t.Fatalf("%d documents, want 4", len(docs))
	}
	var got v1alpha1.Federation
	if err := yaml.UnmarshalStrict([]byte(docs[0]), &got); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.FederationSpec{Algorithm: f.Spec.Algorithm, Rounds: f.Spec.Rounds, Drain: f.Spec.Drain, Trainer: f.Spec.Trainer,
		Sites: []v1alpha1.SiteReference{{Name: "atlanta"}, {Name: "quebec"}, {Name: "unknown"}}}
	a, _ := json.Marshal(got.Spec)
	b, _ := json.Marshal(want)
	if string(a) != string(b) || got.Name != "lm" || got.APIVersion != v1alpha1.APIVersion || got.Kind != v1alpha1.KindFederation {
		t.Errorf("it is\n%s\nwant\n%s", a, b)
	}
	for i, name := range []string{"atlanta", "quebec", "unknown"} {
		var s v1alpha1.Site
		if err := yaml.UnmarshalStrict([]byte(docs[i+1]), &s); err != nil {
			t.Fatal(err)
		}
		watts := map[string]int32{"atlanta": 3000}[name]
		if s.Name != name || s.Kind != v1alpha1.KindSite || s.Spec.Power.TrainingWatts != watts || s.Spec.Grid.Provider != "" {
			t.Errorf("site %s is %+v", name, s.Spec)
		}
	}
}

func TestOnlyWhatConcernsRoundsRestartsTheCoordinator(t *testing.T) {
	f, sites := full()
	pod := func() string {
		s := find[appsv1.StatefulSet](t, build(t, f, sites), "StatefulSet-lm-coordinator")
		b, _ := json.Marshal(s.Spec.Template)
		return string(b)
	}
	before := pod()
	f.Spec.MaxSites, f.Spec.State, f.Spec.Energy.EnterBelowGrams = nil, v1alpha1.StateRunning, pointer(int32(20))
	f.Spec.Agent.Image, f.Spec.Link.Address = "another", "another.example:1"
	sites[0].Spec.Priority, sites[0].Status.Phase = 9, v1alpha1.SiteLost
	slices.Reverse(f.Spec.Sites)
	if pod() != before {
		t.Error("the wishes for energy, places and agents restart it")
	}
	f.Spec.Rounds.TrainSeconds++
	if pod() == before {
		t.Error("another length of rounds does not restart it")
	}
}

func TestTheGraceOfPodsLeavesTheAgentTimeToDrain(t *testing.T) {
	for grace, want := range map[int32]struct {
		pod  int64
		flag string
	}{0: {70, "--grace=1m0s"}, 600: {610, "--grace=10m0s"}} {
		f, sites := minimal()
		f.Spec.Drain.GraceSeconds = grace
		pod := buildAgent(t, f, &sites[0], v1alpha1.VendorNVIDIA).Spec.Template.Spec
		if *pod.TerminationGracePeriodSeconds != want.pod || !slices.Contains(pod.Containers[0].Args, want.flag) {
			t.Errorf("drain %d s: the pod has %d s, the agent %v", grace, *pod.TerminationGracePeriodSeconds, pod.Containers[0].Args)
		}
	}
}

func TestEachSiteMountsItsOwnCertificateOnly(t *testing.T) {
	f, sites := minimal()
	for i, want := range []string{"lm-site-atlanta-tls", "lm-site-quebec-tls"} {
		ds := buildAgent(t, f, &sites[i], v1alpha1.VendorNVIDIA)
		var secrets []string
		for _, v := range ds.Spec.Template.Spec.Volumes {
			if v.Secret != nil {
				secrets = append(secrets, v.Secret.SecretName)
			}
		}
		if !slices.Equal(secrets, []string{want}) {
			t.Errorf("%s mounts %v, want %s", ds.Name, secrets, want)
		}
		for _, m := range ds.Spec.Template.Spec.Containers[1].VolumeMounts {
			if m.Name == "tls" || m.Name == "data" {
				t.Errorf("%s: the trainer sees %s", ds.Name, m.Name)
			}
		}
		if got := ds.Spec.Template.Spec.NodeSelector[v1alpha1.LabelNodeSite]; got != EnrolledFor("lab", sites[i].Name) {
			t.Errorf("%s runs on nodes for %s", ds.Name, got)
		}
	}
}

func TestAMeshNeedsNoCertificates(t *testing.T) {
	f, sites := minimal()
	f.Spec.Link.Mode = v1alpha1.LinkMesh
	for _, pod := range []corev1.PodSpec{
		find[appsv1.StatefulSet](t, build(t, f, sites), "StatefulSet-lm-coordinator").Spec.Template.Spec,
		buildAgent(t, f, &sites[0], v1alpha1.VendorCPU).Spec.Template.Spec,
	} {
		args := strings.Join(pod.Containers[0].Args, " ")
		if !strings.Contains(args, "--insecure") || strings.Contains(args, "--tls") {
			t.Errorf("the arguments are %s", args)
		}
		for _, v := range pod.Volumes {
			if v.Secret != nil {
				t.Errorf("it mounts %s", v.Secret.SecretName)
			}
		}
	}
}

func TestTheRedisURLReachesBothEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		redis *v1alpha1.RedisSpec
		arg   string // empty: none
		env   bool
	}{
		"none":     {nil, "", false},
		"trial":    {&v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}, "--redis=redis://lm-redis.lab.svc:6379/0", false},
		"existing": {&v1alpha1.RedisSpec{URL: "redis://u:p$(X)@r.example:1/2"}, "--redis=redis://u:p$$(X)@r.example:1/2", false},
		"secret":   {&v1alpha1.RedisSpec{URLSecret: &v1alpha1.SecretKeyReference{Name: "redis", Key: "url"}}, "", true},
		"cluster": {&v1alpha1.RedisSpec{Addresses: []string{"r0.example:1", "r1.example:1"}, TLS: &v1alpha1.RedisTLSSpec{}},
			"--redis-address=r0.example:1 --redis-address=r1.example:1 --redis-tls", false},
		"sentinel": {&v1alpha1.RedisSpec{Addresses: []string{"s.example:2"}, MasterName: "m", TLS: &v1alpha1.RedisTLSSpec{ServerName: "n"}},
			"--redis-address=s.example:2 --redis-master-name=m --redis-tls --redis-tls-server-name=n", false},
	} {
		t.Run(name, func(t *testing.T) {
			f, sites := minimal()
			f.Spec.Events.Redis = tc.redis
			children := build(t, f, sites)
			for _, pod := range []corev1.PodSpec{
				find[appsv1.StatefulSet](t, children, "StatefulSet-lm-coordinator").Spec.Template.Spec,
				buildAgent(t, f, &sites[0], v1alpha1.VendorCPU).Spec.Template.Spec,
			} {
				var got []string
				for _, a := range pod.Containers[0].Args {
					if strings.HasPrefix(a, "--redis") {
						got = append(got, a)
					}
				}
				if strings.Join(got, " ") != tc.arg {
					t.Errorf("%v, want %s", got, tc.arg)
				}
				env := slices.ContainsFunc(pod.Containers[0].Env, func(e corev1.EnvVar) bool {
					return e.Name == "GIRASSOL_REDIS_URL" && e.ValueFrom.SecretKeyRef.Name == "redis" && e.ValueFrom.SecretKeyRef.Key == "url"
				})
				if env != tc.env {
					t.Errorf("the variables are %v", pod.Containers[0].Env)
				}
			}
			own := slices.ContainsFunc(children, func(c runtime.ApplyConfiguration) bool { return describe(c) == "Deployment-lm-redis" })
			if own != (name == "trial") {
				t.Errorf("a Redis of its own: %v", own)
			}
		})
	}
}

func TestImagesOfAPrivateRegistryCanBePulledByAllPods(t *testing.T) {
	f, sites := minimal()
	f.Spec.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}
	f.Spec.Coordinator.ImagePullSecrets = []v1alpha1.SecretReference{{Name: "coordinator"}, {Name: "mirror"}}
	f.Spec.Agent.ImagePullSecrets = []v1alpha1.SecretReference{{Name: "agent"}}
	agents, err := Agent(AgentInput{Federation: f, Site: &sites[0], Vendor: v1alpha1.VendorCPU, Images: images})
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range append(build(t, f, sites), agents) {
		pods := as[struct {
			Kind string
			Spec struct{ Template corev1.PodTemplateSpec }
		}](t, child)
		want := "coordinator mirror"
		switch pods.Kind {
		case "DaemonSet":
			want = "agent"
		case "StatefulSet", "Deployment":
		default:
			continue
		}
		var names []string
		for _, s := range pods.Spec.Template.Spec.ImagePullSecrets {
			names = append(names, s.Name)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s pulls with %v, want %s", pods.Kind, names, want)
		}
	}
}

func TestImagesAreTakenFromTheNearestWord(t *testing.T) {
	for name, tc := range map[string]struct {
		edit           func(*v1alpha1.AgentSpec)
		agent, trainer string
		args           string
	}{
		"none":            {func(*v1alpha1.AgentSpec) {}, images.Agent, images.Agent, "trainer"},
		"agent":           {func(a *v1alpha1.AgentSpec) { a.Image = "a" }, "a", "a", "trainer"},
		"arguments":       {func(a *v1alpha1.AgentSpec) { a.Trainer.Args = []string{"--dim=8"} }, images.Agent, images.Agent, "trainer --dim=8"},
		"another command": {func(a *v1alpha1.AgentSpec) { a.Trainer.Command = []string{"/x"} }, images.Agent, images.Agent, ""},
		"trainer":         {func(a *v1alpha1.AgentSpec) { a.Trainer.Image, a.Trainer.Args = "t", []string{"-v"} }, images.Agent, "t", "-v"},
		"vendor": {func(a *v1alpha1.AgentSpec) {
			a.Image, a.Trainer.Image = "a", "t"
			a.Vendors = []v1alpha1.VendorSpec{{Vendor: v1alpha1.VendorNVIDIA, AgentImage: "na", TrainerImage: "nt"}}
		}, "na", "nt", ""},
		"another vendor": {func(a *v1alpha1.AgentSpec) {
			a.Vendors = []v1alpha1.VendorSpec{{Vendor: v1alpha1.VendorAMD, AgentImage: "na", TrainerImage: "nt"}}
		}, images.Agent, images.Agent, "trainer"},
	} {
		t.Run(name, func(t *testing.T) {
			f, sites := minimal()
			tc.edit(&f.Spec.Agent)
			c := buildAgent(t, f, &sites[0], v1alpha1.VendorNVIDIA).Spec.Template.Spec.Containers
			if c[0].Image != tc.agent || c[1].Image != tc.trainer || strings.Join(c[1].Args, " ") != tc.args {
				t.Errorf("agent %s, trainer %s %v", c[0].Image, c[1].Image, c[1].Args)
			}
		})
	}
}

func TestDevicesAreAskedForByTheirVendorsName(t *testing.T) {
	for name, tc := range map[string]struct {
		vendor v1alpha1.Vendor
		seen   string
		spec   string
		want   corev1.ResourceName // empty: none
	}{
		"NVIDIA":         {v1alpha1.VendorNVIDIA, "", "", "nvidia.com/gpu"},
		"AMD":            {v1alpha1.VendorAMD, "", "", "amd.com/gpu"},
		"as nodes show":  {v1alpha1.VendorNVIDIA, "nvidia.com/mig-3g.40gb", "", "nvidia.com/mig-3g.40gb"},
		"the spec wins":  {v1alpha1.VendorAMD, "amd.com/gpu", "amd.com/cpx_nps4", "amd.com/cpx_nps4"},
		"CPU needs none": {v1alpha1.VendorCPU, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, sites := minimal()
			f.Spec.Agent.Vendors = []v1alpha1.VendorSpec{{Vendor: tc.vendor, ResourceName: tc.spec}}
			built, err := Agent(AgentInput{Federation: f, Site: &sites[0], Vendor: tc.vendor, GPUs: 3, Resource: tc.seen, Images: images})
			if err != nil {
				t.Fatal(err)
			}
			limits := as[appsv1.DaemonSet](t, built).Spec.Template.Spec.Containers[1].Resources.Limits
			if tc.want == "" {
				if len(limits) != 0 {
					t.Errorf("the limits are %v", limits)
				}
			} else if q := limits[tc.want]; q.Value() != 3 || len(limits) != 1 {
				t.Errorf("the limits are %v, want 3 %s", limits, tc.want)
			}
		})
	}
}

func TestWhatCannotBeBuiltIsRefusedWithTheWayOut(t *testing.T) {
	volume := func(mount string) func(*v1alpha1.FederationSpec) {
		return func(s *v1alpha1.FederationSpec) {
			s.Agent.Trainer.Volumes = []v1alpha1.TrainerVolume{{Name: "a", MountPath: "/data", ClaimName: "c"}, {Name: "b", MountPath: mount, ClaimName: "c"}}
		}
	}
	for name, tc := range map[string]struct {
		edit        func(*v1alpha1.FederationSpec)
		field, says string
	}{
		"the agent's variable": {func(s *v1alpha1.FederationSpec) {
			s.Agent.Trainer.Env = []v1alpha1.EnvVar{{Name: "GIRASSOL_TRAINER_SOCKET"}}
		}, "spec.agent.trainer.env", "take another"},
		"over shared memory":    {volume("/dev/shm/"), "spec.agent.trainer.volumes", "shared memory"},
		"over another volume":   {volume("/data/."), "spec.agent.trainer.volumes", "volume a"},
		"in the work folder":    {volume(workFolder + "/x"), "spec.agent.trainer.volumes", "neither in nor above"},
		"above the work folder": {volume("/girassol"), "spec.agent.trainer.volumes", "neither in nor above"},
		"the root":              {volume("/"), "spec.agent.trainer.volumes", "neither in nor above"},
		"no absolute path":      {volume("x"), "spec.agent.trainer.volumes", "absolute"},
		"GPUs by hand": {func(s *v1alpha1.FederationSpec) {
			s.Agent.Trainer.Resources.Limits = map[string]resource.Quantity{"nvidia.com/gpu": resource.MustParse("1")}
		}, "spec.agent.trainer.resources", "leave nvidia.com/gpu out"},
		"algorithm": {func(s *v1alpha1.FederationSpec) { s.Algorithm.OuterMomentum = quantity("7") }, "spec.algorithm", "outerMomentum"},
	} {
		t.Run(name, func(t *testing.T) {
			f, sites := minimal()
			tc.edit(&f.Spec)
			_, err := Federation(FederationInput{Federation: f, Sites: sites, Images: images})
			if err == nil {
				_, err = Agent(AgentInput{Federation: f, Site: &sites[0], Vendor: v1alpha1.VendorNVIDIA, GPUs: 1, Images: images})
			}
			var bad *InvalidSpecError
			if !errors.As(err, &bad) || bad.Field != tc.field || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q of %s", err, tc.says, tc.field)
			}
		})
	}
	f, sites := minimal()
	if _, err := Agent(AgentInput{Federation: f, Site: &sites[0], Vendor: v1alpha1.VendorAMD}); err == nil || errors.As(err, new(*InvalidSpecError)) {
		t.Errorf("no GPUs: %v; it is nobody's spec", err)
	}
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

func TestNamesStayWithinLimitsAndApart(t *testing.T) {
	label := func(most int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			s := rapid.StringMatching(`[a-z]([-a-z0-9]{0,61}[a-z0-9])?`).Draw(t, "label")
			return strings.TrimRight(s[:min(len(s), most)], "-")
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		f, site, namespace := label(40).Draw(t, "federation"), label(63).Draw(t, "site"), label(63).Draw(t, "namespace")
		names := []string{CoordinatorName(f), CommitsName(f), RedisName(f), AgentAccountName(f), AuthoritySecretName(f), CoordinatorSecretName(f),
			OperatorSecretName(f), SiteSecretName(f, site), AgentName(f, site, v1alpha1.VendorNVIDIA), AgentName(f, site, v1alpha1.VendorAMD), AgentName(f, site, v1alpha1.VendorCPU)}
		for _, n := range names {
			if len(n) > 63 || !dnsLabel.MatchString(n) {
				t.Errorf("the name %q", n)
			}
		}
		if len(CoordinatorName(f)) > 52 {
			t.Errorf("the StatefulSet %s: its pods' label with the revision would be too long", CoordinatorName(f))
		}
		other, otherNamespace := label(63).Draw(t, "other site"), label(63).Draw(t, "other namespace")
		v, w := EnrolledFor(namespace, site), EnrolledFor(otherNamespace, other)
		if len(v) > 63 || !labelValue.MatchString(v) {
			t.Errorf("the label value %q", v)
		}
		if (v == w) != (namespace == otherNamespace && site == other) {
			t.Errorf("%s/%s and %s/%s have %q and %q", namespace, site, otherNamespace, other, v, w)
		}
	})
}

func TestLongNamesThatBeginAlikeStayApart(t *testing.T) {
	a, b := strings.Repeat("a", 60)+"xyz", strings.Repeat("a", 60)+"xyw"
	if AgentName("lm", a, v1alpha1.VendorAMD) == AgentName("lm", b, v1alpha1.VendorAMD) || SiteSecretName("lm", a) == SiteSecretName("lm", b) ||
		EnrolledFor("ns", a) == EnrolledFor("ns", b) {
		t.Error("two sites have one name")
	}
}

func TestTheCoordinatorsCertificateNamesItsServiceAndTheOutsideAddress(t *testing.T) {
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "lm"}}
	if got := CoordinatorAddress(f); got != "lm-coordinator.lab.svc:7465" {
		t.Errorf("the address is %s", got)
	}
	for address, want := range map[string]string{"": "", "fed.example:443": "fed.example", "[2001:db8::1]:443": "2001:db8::1", "fed.example": "fed.example"} {
		f.Spec.Link.Address = address
		hosts := CoordinatorHosts(f)
		if !slices.Contains(hosts, "lm-coordinator.lab.svc") || want != "" && !slices.Contains(hosts, want) || want == "" && len(hosts) != 4 {
			t.Errorf("%q: the hosts are %v", address, hosts)
		}
	}
}
