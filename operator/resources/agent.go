package resources

import (
	"fmt"
	"path"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Where agent and trainer meet, and where the agent keeps model and residual.
const (
	workFolder = "/girassol/shared"
	socketPath = workFolder + "/run/trainer.sock"
	dataFolder = "/var/lib/girassol"
	// hostFolder is where parts of the node's file system are mounted.
	hostFolder = "/host"
)

const (
	// defaultGrace of spec.drain.graceSeconds.
	defaultGrace = 60
	// killMargin between the agent's own end and the kubelet's.
	killMargin = 10
	// standsAfter so many seconds a new agent counts, before the next is replaced.
	standsAfter = 10
)

// agent builds one site's DaemonSet for one vendor.
//
// A site has its own, because its pods mount the certificate that speaks for it:
// one shared with other sites would carry their keys too.
//
// A changed template reaches one node after another. Each agent leaves in order,
// with the drain's grace, and its partial work counts; one that crashes is replaced
// at once. OnDelete would spare the drains and leave a crashing image where it is
// until a person deletes its pods.
func agent(in AgentInput) (*appsv1ac.DaemonSetApplyConfiguration, error) {
	f, s := in.Federation, in.Site
	vendor := vendorSpec(f, in.Vendor)
	trainer, volumes, err := trainerContainer(in, vendor)
	if err != nil {
		return nil, err
	}
	grace := f.Spec.Drain.GraceSeconds
	if grace == 0 {
		grace = defaultGrace
	}
	data, dataPath := agentData(f)
	pod := restrictedPod().
		WithServiceAccountName(AgentAccountName(f.Name)).
		WithTerminationGracePeriodSeconds(int64(grace)+killMargin).
		WithNodeSelector(map[string]string{
			v1alpha1.LabelAgent:    VendorLabel(in.Vendor),
			v1alpha1.LabelNodeSite: EnrolledFor(s.Namespace, s.Name),
		}).
		WithTolerations(tolerations(vendor.Tolerations)...).
		WithContainers(
			restrictedContainer("agent", agentImage(in, vendor)).
				WithArgs(agentArgs(in, dataPath, time.Duration(grace)*time.Second)...).
				WithEnv(nodeNameEnv()).
				WithEnv(redisEnv(f)...).
				WithPorts(port("metrics", MetricsPort)).
				WithResources(resources(f.Spec.Agent.Resources, corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
				}, nil)).
				WithReadinessProbe(probe("/healthz", 5, 3)).
				WithVolumeMounts(mount("work", workFolder), mount("data", dataFolder)),
			trainer,
		).
		WithVolumes(workVolume(f), data).
		WithVolumes(volumes...)
	if in.Vendor != v1alpha1.VendorCPU && vendor.RuntimeClassName != "" {
		pod.WithRuntimeClassName(vendor.RuntimeClassName)
	}
	if c := f.Spec.Agent.PriorityClassName; c != "" {
		pod.WithPriorityClassName(c)
	}
	pod.WithImagePullSecrets(pullSecrets(f.Spec.Agent.ImagePullSecrets)...)
	if len(vendor.SupplementalGroups) > 0 {
		pod.SecurityContext.WithSupplementalGroups(vendor.SupplementalGroups...)
	}
	if f.Spec.Agent.MeasureProcessors {
		mountPowercap(pod)
	}
	mountTLS(pod, f, SiteSecretName(f.Name, s.Name))
	labels := AgentLabels(f.Name, s.Name, in.Vendor)
	match := selector(f.Name, ComponentAgent)
	match[v1alpha1.LabelSite], match[v1alpha1.LabelAgent] = labels[v1alpha1.LabelSite], labels[v1alpha1.LabelAgent]
	return appsv1ac.DaemonSet(AgentName(f.Name, s.Name, in.Vendor), s.Namespace).
		WithLabels(labels).
		WithOwnerReferences(owner(s.ObjectMeta, v1alpha1.KindSite)).
		WithSpec(appsv1ac.DaemonSetSpec().
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(match)).
			WithMinReadySeconds(standsAfter).
			WithUpdateStrategy(appsv1ac.DaemonSetUpdateStrategy().
				WithType(appsv1.RollingUpdateDaemonSetStrategyType).
				WithRollingUpdate(appsv1ac.RollingUpdateDaemonSet().
					WithMaxUnavailable(intstr.FromInt32(1)).
					WithMaxSurge(intstr.FromInt32(0)))). // the old pod holds the GPUs
			WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).WithSpec(pod))), nil
}

func vendorSpec(f *v1alpha1.Federation, vendor v1alpha1.Vendor) v1alpha1.VendorSpec {
	for _, v := range f.Spec.Agent.Vendors {
		if v.Vendor == vendor {
			return v
		}
	}
	return v1alpha1.VendorSpec{Vendor: vendor}
}

func agentImage(in AgentInput, vendor v1alpha1.VendorSpec) string {
	for _, image := range []string{vendor.AgentImage, in.Federation.Spec.Agent.Image} {
		if image != "" {
			return image
		}
	}
	return in.Images.Agent
}

// agentData is where model and residual are kept: in the pod, or below a folder
// of the node. Each federation has its own there, made by the agent itself: what
// the kubelet makes is root's, and no root runs in these pods. So the node's folder
// must be there and user 65532 be able to write to it.
func agentData(f *v1alpha1.Federation) (volume *corev1ac.VolumeApplyConfiguration, dataPath string) {
	volume = corev1ac.Volume().WithName("data")
	if f.Spec.Agent.DataPath == "" {
		return volume.WithEmptyDir(corev1ac.EmptyDirVolumeSource()), dataFolder
	}
	return volume.WithHostPath(corev1ac.HostPathVolumeSource().
		WithPath(f.Spec.Agent.DataPath).WithType(corev1.HostPathDirectory)), path.Join(dataFolder, f.Namespace, f.Name)
}

func workVolume(f *v1alpha1.Federation) *corev1ac.VolumeApplyConfiguration {
	size := resource.MustParse("8Gi")
	if w := f.Spec.Agent.WorkSize; w != nil {
		size = *w
	}
	return corev1ac.Volume().WithName("work").WithEmptyDir(corev1ac.EmptyDirVolumeSource().
		WithMedium(corev1.StorageMediumMemory).WithSizeLimit(size))
}

func nodeNameEnv() *corev1ac.EnvVarApplyConfiguration {
	return corev1ac.EnvVar().WithName("GIRASSOL_NODE").WithValueFrom(corev1ac.EnvVarSource().
		WithFieldRef(corev1ac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath("spec.nodeName")))
}

func agentArgs(in AgentInput, dataPath string, grace time.Duration) []string {
	args := []string{
		"--coordinator=" + CoordinatorAddress(in.Federation),
		"--federation=" + in.Federation.Name,
		"--site=" + in.Site.Name,
		"--node=$(GIRASSOL_NODE)",
		"--data=" + dataPath,
		"--work=" + workFolder,
		"--socket=" + socketPath,
		"--grace=" + grace.String(),
		fmt.Sprintf("--metrics-listen=:%d", MetricsPort),
		"--log-format=json",
	}
	if watts := in.Site.Spec.Power.CapWatts; watts > 0 {
		args = append(args, fmt.Sprintf("--power-cap-watts=%d", watts))
	}
	if in.Federation.Spec.Agent.MeasureProcessors {
		args = append(args, "--powercap-root="+hostFolder)
	}
	return append(append(args, linkArgs(in.Federation)...), redisArgs(in.Federation)...)
}

// mountPowercap gives the agent, the first container, the node's energy counters of
// processors. Both folders keep their places below hostFolder, because the one
// links into the other; at their own places the container runtime would hide them.
func mountPowercap(pod *corev1ac.PodSpecApplyConfiguration) {
	for _, v := range [...]struct{ name, folder string }{{"powercap-class", "/sys/class/powercap"}, {"powercap-zones", "/sys/devices/virtual/powercap"}} {
		name, folder := v.name, v.folder
		pod.Containers[0].WithVolumeMounts(mount(name, hostFolder+folder).WithReadOnly(true))
		pod.WithVolumes(corev1ac.Volume().WithName(name).WithHostPath(corev1ac.HostPathVolumeSource().
			WithPath(folder).WithType(corev1.HostPathUnset)))
	}
}
