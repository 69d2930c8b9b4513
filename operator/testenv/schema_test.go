package testenv

import (
	"context"
	"os"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func federation(namespace, name string) *v1alpha1.Federation {
	return &v1alpha1.Federation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.FederationSpec{Sites: []v1alpha1.SiteReference{{Name: "quebec"}, {Name: "atlanta"}}},
	}
}

func pointer[T any](v T) *T { return &v }

func TestBadFederationsAreRefusedWithTheWayOut(t *testing.T) {
	e := Shared(t)
	ns := e.Namespace(t)
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.Federation)
		says string
	}{
		"long name":           {func(f *v1alpha1.Federation) { f.Name = strings.Repeat("a", 41) }, "at most 40 characters"},
		"a tunnel of its own": {func(f *v1alpha1.Federation) { f.Spec.Link.Mode = v1alpha1.LinkWireGuard }, "take mode MTLS, or Mesh"},
		"no sites":            {func(f *v1alpha1.Federation) { f.Spec.Sites = nil }, "spec.sites"},
		"a site twice":        {func(f *v1alpha1.Federation) { f.Spec.Sites[1].Name = "quebec" }, "Duplicate value"},
		"site name":           {func(f *v1alpha1.Federation) { f.Spec.Sites[1].Name = "Atlanta" }, "lower-case letters"},
		"quorum of three":     {func(f *v1alpha1.Federation) { f.Spec.Rounds.MinSites = 3 }, "lower rounds.minSites or name more sites"},
		"maxSites below the quorum": {func(f *v1alpha1.Federation) {
			f.Spec.Rounds.MinSites, f.Spec.MaxSites = 2, pointer(int32(1))
		}, "raise maxSites"},
		"no hysteresis": {func(f *v1alpha1.Federation) {
			f.Spec.Energy.EnterBelowGrams, f.Spec.Energy.LeaveAboveGrams = pointer(int32(200)), pointer(int32(200))
		}, "enterBelowGrams must be below leaveAboveGrams"},
		"grams and percentiles": {func(f *v1alpha1.Federation) {
			f.Spec.Energy.EnterBelowGrams, f.Spec.Energy.LeaveAbovePercentile = pointer(int32(20)), pointer(int32(60))
		}, "one of the two"},
		"tokens without a deadline": {func(f *v1alpha1.Federation) {
			f.Spec.Energy.Budget = &v1alpha1.BudgetSpec{Tokens: pointer(int64(1e9))}
		}, "tokens and deadline belong together"},
		"file without a path": {func(f *v1alpha1.Federation) { f.Spec.Model.Source = v1alpha1.ModelFromFile }, "source File needs it"},
		"strategy":            {func(f *v1alpha1.Federation) { f.Spec.Algorithm.Strategy = "Magic" }, "DecoupledMomentum"},
		"half trimmed at both ends": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm = v1alpha1.AlgorithmSpec{Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{TrimFraction: pointer(resource.MustParse("0.5"))}}
		}, "spec.algorithm.robust.trimFraction"},
		"negative trim": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm = v1alpha1.AlgorithmSpec{Strategy: v1alpha1.FedAvg, Robust: &v1alpha1.RobustSpec{TrimFraction: pointer(resource.MustParse("-1"))}}
		}, "at least 0 and below 0.5"},
		"clip to nothing": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm = v1alpha1.AlgorithmSpec{Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{ClipFactor: pointer(resource.MustParse("0"))}}
		}, "spec.algorithm.robust.clipFactor"},
		"robust of sparse updates": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm.Robust = &v1alpha1.RobustSpec{TrimFraction: pointer(resource.MustParse("100m"))}
		}, "needs strategy DiLoCo or FedAvg"},
		"schedule of dense updates": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm = v1alpha1.AlgorithmSpec{Strategy: v1alpha1.DiLoCo, Schedule: []v1alpha1.DensitySpec{{FromVersion: 3}}}
		}, "needs strategy DecoupledMomentum"},
		"schedule out of order": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm.Schedule = []v1alpha1.DensitySpec{{FromVersion: 9}, {FromVersion: 3}}
		}, "ascending fromVersion"},
		"schedule of one version twice": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm.Schedule = []v1alpha1.DensitySpec{{FromVersion: 3}, {FromVersion: 3}}
		}, "spec.algorithm.schedule"},
		"group of 300": {func(f *v1alpha1.Federation) {
			f.Spec.Algorithm.Uplink = &v1alpha1.EncodingSpec{GroupSize: 300}
		}, "spec.algorithm.uplink.groupSize"},
		"redis without URL": {func(f *v1alpha1.Federation) { f.Spec.Events.Redis = &v1alpha1.RedisSpec{} }, "mode Trial makes its own"},
		"redis with a password's file": {func(f *v1alpha1.Federation) {
			f.Spec.Events.Redis = &v1alpha1.RedisSpec{Addresses: []string{"r.example:6379"}, PasswordFile: "/etc/redis/password"}
		}, "use urlSecret, whose URL holds both"},
		"redis with a user": {func(f *v1alpha1.Federation) {
			f.Spec.Events.Redis = &v1alpha1.RedisSpec{URL: "redis://r.example:6379", Username: "coordinator"}
		}, "use urlSecret, whose URL holds both"},
		"redis with files of TLS": {func(f *v1alpha1.Federation) {
			f.Spec.Events.Redis = &v1alpha1.RedisSpec{URL: "rediss://r.example:6379", TLS: &v1alpha1.RedisTLSSpec{CAFile: "/ca.pem"}}
		}, "no pod has them"},
		"trial with TLS": {func(f *v1alpha1.Federation) {
			f.Spec.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial, TLS: &v1alpha1.RedisTLSSpec{}}
		}, "speaks no TLS"},
		"toleration of all": {func(f *v1alpha1.Federation) {
			f.Spec.Agent.Vendors = []v1alpha1.VendorSpec{{Vendor: v1alpha1.VendorAMD, Tolerations: []v1alpha1.Toleration{{Operator: "Exists"}}}}
		}, "needs a key"},
		"system priority": {func(f *v1alpha1.Federation) { f.Spec.Agent.PriorityClassName = "system-node-critical" }, "class of your own"},
		"two kinds of volume": {func(f *v1alpha1.Federation) {
			f.Spec.Agent.Trainer.Volumes = []v1alpha1.TrainerVolume{{Name: "data", MountPath: "/data", ClaimName: "a", HostPath: "/b"}}
		}, "exactly one of"},
		"sender for nothing": {func(f *v1alpha1.Federation) {
			f.Spec.Energy.Webhook = &v1alpha1.WebhookSpec{Sources: []v1alpha1.WebhookSource{{Name: "grid"}}}
		}, "may speak for"},
	} {
		t.Run(name, func(t *testing.T) {
			f := federation(ns, "bad")
			tc.edit(f)
			refused(t, e.Client.Create(context.Background(), f, client.DryRunAll), tc.says)
		})
	}
}

func TestARedisOfManyAddressesIsTaken(t *testing.T) {
	e := Shared(t)
	ns := e.Namespace(t)
	f := federation(ns, "redis")
	f.Spec.Events.Redis = &v1alpha1.RedisSpec{Addresses: []string{"s0.example:26379", "s1.example:26379"}, MasterName: "events",
		TLS: &v1alpha1.RedisTLSSpec{ServerName: "redis.example"}}
	if err := e.Client.Create(context.Background(), f, client.DryRunAll); err != nil {
		t.Error(err)
	}
}

func TestAlgorithmsAreTaken(t *testing.T) {
	e := Shared(t)
	ns := e.Namespace(t)
	for name, a := range map[string]v1alpha1.AlgorithmSpec{
		"robust":   {Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{TrimFraction: pointer(resource.MustParse("0.25")), ClipFactor: pointer(resource.MustParse("3"))}},
		"schedule": {Schedule: []v1alpha1.DensitySpec{{FromVersion: 0, UplinkKeepOneIn: 8}, {FromVersion: 100, UplinkKeepOneIn: 32, DownlinkKeepOneIn: 16}}},
		"encoding": {Uplink: &v1alpha1.EncodingSpec{KeepOneIn: 32, Values: v1alpha1.ValuesOneBit, Transform: v1alpha1.TransformIdentity, GroupSize: 512}},
	} {
		f := federation(ns, name)
		f.Spec.Algorithm = a
		if err := e.Client.Create(context.Background(), f, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadSitesAreRefusedWithTheWayOut(t *testing.T) {
	e := Shared(t)
	ns := e.Namespace(t)
	nodes := &v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"region": "x"}}}
	for name, tc := range map[string]struct {
		spec v1alpha1.SiteSpec
		says string
	}{
		"budget":         {v1alpha1.SiteSpec{Energy: &v1alpha1.EnergySpec{TargetSites: 1}}, "belong to the Federation"},
		"label no nodes": {v1alpha1.SiteSpec{Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityNodeLabel}}, "nodes.selector"},
		"scale nothing":  {v1alpha1.SiteSpec{Nodes: nodes, Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityScale}}, "scaleTargetRef"},
		"idle is active": {v1alpha1.SiteSpec{Nodes: nodes, Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityScale, IdleReplicas: 1,
			ScaleTargetRef: &v1alpha1.ScaleTargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "a"}}}, "below activeReplicas"},
		"plain provisioner": {v1alpha1.SiteSpec{Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityWebhook,
			Webhook: &v1alpha1.ProvisionerSpec{URL: "http://provisioner.example", Secret: v1alpha1.SecretKeyReference{Name: "a", Key: "b"}}}}, "must be https"},
		"latitude alone": {v1alpha1.SiteSpec{Grid: v1alpha1.GridSpec{GridSource: v1alpha1.GridSource{Latitude: pointer(resource.MustParse("45.5"))}}}, "belong together"},
		"prometheus":     {v1alpha1.SiteSpec{Grid: v1alpha1.GridSpec{GridSource: v1alpha1.GridSource{Provider: v1alpha1.GridPrometheus}}}, "needs url and query"},
		"two kinds of credentials": {v1alpha1.SiteSpec{Grid: v1alpha1.GridSpec{GridSource: v1alpha1.GridSource{Credentials: &v1alpha1.CredentialsSpec{
			Secret: &v1alpha1.SecretReference{Name: "a"}, TokenFile: "/b"}}}}, "not both"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "bad"}, Spec: tc.spec}
			refused(t, e.Client.Create(context.Background(), s, client.DryRunAll), tc.says)
		})
	}
}

func refused(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("the apiserver says %v, want a refusal with %q", err, says)
	}
}

func TestTheModelCannotChangeOnceTrainingHasStarted(t *testing.T) {
	e, ctx := Shared(t), context.Background()
	f := federation(e.Namespace(t), "gpt")
	if err := e.Client.Create(ctx, f); err != nil {
		t.Fatal(err)
	}
	f.Spec.Model = v1alpha1.ModelSpec{Source: v1alpha1.ModelFromFile, Path: "/models/a.safetensors"}
	if err := e.Client.Update(ctx, f); err != nil {
		t.Fatalf("before training the model may change: %v", err)
	}
	f.Status.ModelVersion = pointer(int64(1))
	if err := e.Client.Status().Update(ctx, f); err != nil {
		t.Fatal(err)
	}
	f.Spec.Rounds.Total = 7
	if err := e.Client.Update(ctx, f); err != nil {
		t.Fatalf("the rest may change: %v", err)
	}
	for name, model := range map[string]v1alpha1.ModelSpec{
		"another path": {Source: v1alpha1.ModelFromFile, Path: "/models/b.safetensors"},
		"none":         {},
	} {
		t.Run(name, func(t *testing.T) {
			g := f.DeepCopy()
			g.Spec.Model = model
			g.Status = v1alpha1.FederationStatus{} // a writer of the spec cannot dodge the rule
			refused(t, e.Client.Update(ctx, g), "make a new Federation for another model")
		})
	}
}

func TestACorpusGrowsAndDoesNotShrink(t *testing.T) {
	e, ctx := Shared(t), context.Background()
	f := federation(e.Namespace(t), "corpus")
	f.Spec.Data = &v1alpha1.DataSpec{Samples: 100}
	if err := e.Client.Create(ctx, f); err != nil {
		t.Fatal(err)
	}
	f.Spec.Data.Samples = 200
	if err := e.Client.Update(ctx, f); err != nil {
		t.Fatal(err)
	}
	f.Spec.Data.Samples = 199
	refused(t, e.Client.Update(ctx, f), "may grow, not shrink")
}

func TestAGateNeedsEvaluationsAndAnEvaluatingSiteIsOneOfTheFederations(t *testing.T) {
	e := Shared(t)
	for says, evaluation := range map[string]v1alpha1.EvaluationSpec{
		"the gate needs evaluations": {Gate: &v1alpha1.GateSpec{}},
		"none of the federation's":   {Every: 1, Site: "elsewhere"},
	} {
		f := federation(e.Namespace(t), "evaluated")
		f.Spec.Evaluation = evaluation
		refused(t, e.Client.Create(context.Background(), f, client.DryRunAll), says)
	}
}

func TestScaleMovesMaxSitesDownToZero(t *testing.T) {
	e, ctx := Shared(t), context.Background()
	f := federation(e.Namespace(t), "scaled")
	f.Spec.MaxSites = pointer(int32(2))
	if err := e.Client.Create(ctx, f); err != nil {
		t.Fatal(err)
	}
	scale := &autoscalingv1.Scale{}
	if err := e.Client.SubResource("scale").Get(ctx, f, scale); err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 0
	if err := e.Client.SubResource("scale").Update(ctx, f, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	if err := e.Client.Get(ctx, client.ObjectKeyFromObject(f), f); err != nil {
		t.Fatal(err)
	}
	if f.Spec.MaxSites == nil || *f.Spec.MaxSites != 0 {
		t.Errorf("maxSites is %v after /scale set 0", f.Spec.MaxSites)
	}
}
