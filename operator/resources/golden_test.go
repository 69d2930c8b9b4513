package resources

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var update = flag.Bool("update", false, "write the golden files anew")

var images = Images{Coordinator: "ghcr.io/girassol/coordinator:1", Agent: "ghcr.io/girassol/agent:1", Redis: "docker.io/library/redis:8"}

func pointer[T any](v T) *T { return &v }

func quantity(s string) *resource.Quantity { return pointer(resource.MustParse(s)) }

// minimal is a federation of which nothing is said but its sites.
func minimal() (*v1alpha1.Federation, []v1alpha1.Site) {
	f := &v1alpha1.Federation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "lm", UID: "f-uid"},
		Spec:       v1alpha1.FederationSpec{Sites: []v1alpha1.SiteReference{{Name: "quebec"}, {Name: "atlanta"}}},
	}
	return f, []v1alpha1.Site{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "atlanta", UID: "a-uid"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "quebec", UID: "q-uid"}},
	}
}

// full says everything there is to say.
func full() (*v1alpha1.Federation, []v1alpha1.Site) {
	f, sites := minimal()
	f.Spec = v1alpha1.FederationSpec{
		Sites:     []v1alpha1.SiteReference{{Name: "quebec"}, {Name: "atlanta"}, {Name: "unknown"}},
		MaxSites:  pointer(int32(1)),
		Algorithm: v1alpha1.AlgorithmSpec{OuterMomentum: quantity("0.5"), Uplink: &v1alpha1.EncodingSpec{KeepOneIn: 8}},
		Rounds:    v1alpha1.RoundsSpec{Total: 10, MinSites: 1, LocalSteps: 50, TrainSeconds: 300, MaxConsecutiveVoid: 3},
		Energy:    v1alpha1.EnergySpec{EnterBelowGrams: pointer(int32(100)), LeaveAboveGrams: pointer(int32(150))},
		Drain:     v1alpha1.DrainSpec{GraceSeconds: 90},
		Events:    v1alpha1.EventsSpec{Redis: &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}},
		Trainer:   map[string]string{"lr": "0.001", "warmup": "10", "beta1": "0.9", "a": "b"},
		State:     v1alpha1.StateSuspended,
		Link:      v1alpha1.LinkSpec{Address: "fed.example:443"},
		Coordinator: v1alpha1.CoordinatorSpec{
			Image:            "registry.example/coordinator:2",
			Storage:          v1alpha1.StorageSpec{Size: quantity("100Gi"), ClassName: pointer("fast"), ReclaimPolicy: v1alpha1.ReclaimDelete},
			Resources:        v1alpha1.ResourcesSpec{Requests: map[string]resource.Quantity{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi")}, Limits: map[string]resource.Quantity{"memory": resource.MustParse("8Gi")}},
			NodeSelector:     map[string]string{"zone": "fra", "disk": "nvme"},
			Tolerations:      []v1alpha1.Toleration{{Key: "control", Operator: "Exists"}},
			HeartbeatSeconds: 2,
		},
		Agent: v1alpha1.AgentSpec{
			Image:             "registry.example/agent:2",
			Resources:         v1alpha1.ResourcesSpec{Limits: map[string]resource.Quantity{"memory": resource.MustParse("16Gi")}},
			WorkSize:          quantity("24Gi"),
			DataPath:          "/srv/girassol",
			MeasureProcessors: true,
			PriorityClassName: "training",
			ImagePullSecrets:  []v1alpha1.SecretReference{{Name: "pull"}},
			Trainer: v1alpha1.TrainerSpec{
				Image: "registry.example/trainer:2", Command: []string{"python", "train.py"}, Args: []string{"--bf16"},
				Env: []v1alpha1.EnvVar{{Name: "HF_TOKEN", Secret: &v1alpha1.SecretKeyReference{Name: "hf", Key: "token"}}, {Name: "HOME", Value: "/home/user"}},
				Resources: v1alpha1.ResourcesSpec{Requests: map[string]resource.Quantity{"cpu": resource.MustParse("8"), "memory": resource.MustParse("64Gi")},
					Limits: map[string]resource.Quantity{"memory": resource.MustParse("128Gi")}},
				Volumes: []v1alpha1.TrainerVolume{{Name: "text", MountPath: "/data", ClaimName: "text"}, {Name: "config", MountPath: "/config", ConfigMapName: "c"},
					{Name: "cache", MountPath: "/cache", HostPath: "/srv/cache"}},
			},
			Vendors: []v1alpha1.VendorSpec{
				{Vendor: v1alpha1.VendorNVIDIA, RuntimeClassName: "nvidia", Tolerations: []v1alpha1.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}}},
				{Vendor: v1alpha1.VendorAMD, ResourceName: "amd.com/cpx_nps4", TrainerImage: "registry.example/trainer-rocm:2", AgentImage: "registry.example/agent-rocm:2",
					SupplementalGroups: []int64{109}, Tolerations: []v1alpha1.Toleration{{Key: "pool", Value: "gpu", Effect: "NoExecute"}}},
			},
		},
	}
	sites[0].Spec = v1alpha1.SiteSpec{
		Grid:  v1alpha1.GridSpec{GridSource: v1alpha1.GridSource{Provider: v1alpha1.GridWattTime, Region: "SOCO", Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: "watttime"}}}},
		Nodes: &v1alpha1.NodesSpec{Vendor: v1alpha1.VendorAMD}, Power: v1alpha1.PowerSpec{TrainingWatts: 3000, CapWatts: 450, PUE: quantity("1.2")}, Priority: 5,
	}
	sites[1].Spec.Power = v1alpha1.PowerSpec{TrainingWatts: 100, PUE: quantity("0.5")} // cannot be: the others train on
	sites[1].Status.Phase = v1alpha1.SiteActive
	return f, sites
}

// everything that is built for a federation, its Secrets too.
func everything(t *testing.T, f *v1alpha1.Federation, sites []v1alpha1.Site) []runtime.ApplyConfiguration {
	t.Helper()
	all, err := Federation(FederationInput{Federation: f, Sites: sites, Images: images,
		Operator: Peer{Namespace: "girassol", Labels: map[string]string{"app.kubernetes.io/name": "girassol-operator"}}})
	if err != nil {
		t.Fatal(err)
	}
	leaf := certs.Leaf{Certificate: []byte("certificate"), Key: []byte("key"), CA: []byte("ca")}
	all = append(all,
		AuthoritySecret(f, &certs.Authority{CertificatePEM: []byte("certificate"), KeyPEM: []byte("key")}),
		CoordinatorSecret(f, leaf), OperatorSecret(f, leaf))
	for i, vendor := range []v1alpha1.Vendor{v1alpha1.VendorAMD, v1alpha1.VendorNVIDIA, v1alpha1.VendorCPU} {
		s := sites[i%2]
		ds, err := Agent(AgentInput{Federation: f, Site: &s, Vendor: vendor, GPUs: 8, Images: images})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ds)
		if i < 2 {
			all = append(all, SiteSecret(f, s.Name, leaf))
		}
	}
	return all
}

type described interface {
	GetKind() *string
	GetName() *string
}

func describe(o runtime.ApplyConfiguration) string {
	d := o.(described)
	return *d.GetKind() + "-" + *d.GetName()
}

func TestChildrenLookAsTheyShould(t *testing.T) {
	for name, federation := range map[string]func() (*v1alpha1.Federation, []v1alpha1.Site){"minimal": minimal, "full": full} {
		t.Run(name, func(t *testing.T) {
			f, sites := federation()
			dir := filepath.Join("testdata", name)
			wanted := map[string]bool{}
			for _, o := range everything(t, f, sites) {
				file := strings.ToLower(describe(o)) + ".yaml"
				wanted[file] = true
				got, err := yaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, file)
				if *update {
					if err := os.MkdirAll(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != string(want) {
					t.Errorf("%s differs (run with -update if it is meant to):\n%s\nwant\n%s", path, got, want)
				}
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if !wanted[e.Name()] {
					t.Errorf("%s/%s is built no more: remove it", dir, e.Name())
				}
			}
		})
	}
}

func TestTheSameInputGivesTheSameBytesInAnyOrderOfMaps(t *testing.T) {
	render := func() string {
		f, sites := full()
		rand.Shuffle(len(sites), func(i, j int) { sites[i], sites[j] = sites[j], sites[i] })
		rand.Shuffle(len(f.Spec.Sites), func(i, j int) { f.Spec.Sites[i], f.Spec.Sites[j] = f.Spec.Sites[j], f.Spec.Sites[i] })
		f.Spec.Trainer = reinserted(f.Spec.Trainer)
		f.Spec.Coordinator.NodeSelector = reinserted(f.Spec.Coordinator.NodeSelector)
		f.Spec.Coordinator.Resources.Requests = reinserted(f.Spec.Coordinator.Resources.Requests)
		f.Spec.Agent.Trainer.Resources.Requests = reinserted(f.Spec.Agent.Trainer.Resources.Requests)
		children, err := Federation(FederationInput{Federation: f, Sites: sites, Images: images})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"quebec", "atlanta"} {
			ds, err := Agent(AgentInput{Federation: f, Site: &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: s}}, Vendor: v1alpha1.VendorAMD, GPUs: 8, Images: images})
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, ds)
		}
		b, err := yaml.Marshal(children)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := render()
	for i := range 100 {
		if got := render(); got != first {
			t.Fatalf("built for the %dth time it is\n%s\nwant\n%s", i+2, got, first)
		}
	}
}

// reinserted is a copy whose entries were made in another order.
func reinserted[V any](m map[string]V) map[string]V {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	out := map[string]V{}
	for i := range 32 { // other buckets, too
		out[fmt.Sprint("filler", i)] = *new(V)
	}
	for _, k := range keys {
		out[k] = m[k]
	}
	for i := range 32 {
		delete(out, fmt.Sprint("filler", i))
	}
	return out
}
