package churn

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// hardware is the nodes, the machines' provider, the disk of the commit log, and
// the kubelet that runs the pods' processes.
func (r *rig) hardware(s setup) {
	t, e := r.t, r.e
	t.Helper()
	address := testenv.PodAddress(r.ns, resources.CoordinatorName(federationName)+"-0")
	host := resources.CoordinatorName(federationName) + "." + r.ns + ".svc"
	r.kubelet = e.StartKubelet(t, testenv.KubeletOptions{
		Namespace: r.ns, Dir: r.dir, Hosts: map[string]string{host: address},
		Program: func(c *corev1.Container) string {
			// Redis is not run: rounds do without.
			switch name := strings.SplitN(path.Base(c.Image), ":", 2)[0]; name {
			case "girassol-coordinator":
				return program("coordinator")
			case "girassol-agent":
				return program("agent")
			}
			return ""
		},
		Extra: func(_ *corev1.Pod, c *corev1.Container) []string {
			switch c.Name {
			case "coordinator":
				more := []string{"--keep-updates", "--snapshot-every=100000"}
				if r.clock != nil {
					more = append(more, r.clock.args()...)
				}
				return more
			case "agent":
				// The address dialled is this machine's, the certificate the Service's.
				return []string{"--server-name=" + host, "--retry-max=1s"}
			}
			return nil
		},
	})
	labels := func(region string) map[string]string {
		return map[string]string{corev1.LabelTopologyRegion: region, labelBench: r.ns}
	}
	e.Node(t, testenv.PlainNode("frankfurt-"+r.ns, labels("eu-central")))
	r.power = e.Power(t, r.ns)
	for _, name := range r.atlantaNodes() {
		n := testenv.AMDNode(name, 8, labels("us-ga"))
		n.Labels[testenv.LabelPower] = r.ns
		r.text(name)
		e.Node(t, n)
	}
	r.machines = &testenv.Machines{Namespace: r.ns, Name: machinesName, Boot: boot, Driver: s.driver, Gone: r.kubelet.PowerOff,
		Node: func(name string) *corev1.Node {
			name += "-" + r.ns
			r.text(name)
			return testenv.NvidiaNode(name, 8, labels("ca-qc"))
		}}
	e.Provide(t, r.machines)
	r.disk()
}

func (r *rig) atlantaNodes() []string { return []string{"atlanta-1-" + r.ns, "atlanta-2-" + r.ns} }

// text lies on every node's disk; no two have the same.
func (r *rig) text(node string) {
	for folder, text := range map[string]string{
		"train":    strings.Repeat("the node "+node+" has its own words, and says them again and again.\n", 200),
		"held-out": strings.Repeat("a node has its own words, and says them again.\n", 100),
	} {
		dir := r.kubelet.Disk(node, "/srv/girassol/text/"+folder)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text), 0o644)
		}
		if err != nil {
			r.t.Error(err)
		}
	}
}

// store is the folder of the commit log's volume.
func (r *rig) store() string { return filepath.Join(r.dir, "volume") }

// disk is a volume for the commit log, bound to its claim beforehand because
// volumes belong to no namespace, and the cluster's default class.
func (r *rig) disk() {
	immediate := storagev1.VolumeBindingImmediate
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "bench", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &immediate,
	}
	if err := r.e.Client.Create(context.Background(), class); err != nil && !apierrors.IsAlreadyExists(err) {
		r.t.Fatal(err)
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "commits-" + r.ns},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class.Name,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: r.store()}},
			ClaimRef:               &corev1.ObjectReference{Namespace: r.ns, Name: resources.CommitsName(federationName)},
		},
	}
	r.create(pv)
}
