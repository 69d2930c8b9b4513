package resources

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// configHashAnnotation on the coordinator's pods makes a changed configuration
// restart them; the commit log carries the run over.
const configHashAnnotation = v1alpha1.Group + "/config-hash"

// ConfigKey of the coordinator's ConfigMap.
const ConfigKey = "federation.yaml"

// Where the coordinator finds what is its own.
const (
	configFolder  = "/etc/girassol/config"
	tlsFolder     = "/etc/girassol/tls"
	commitsFolder = "/var/lib/girassol"
)

const (
	defaultHeartbeat = 5 * time.Second
	// coordinatorGrace is more than the coordinator takes to end its streams.
	coordinatorGrace = 30
)

func coordinatorConfigMap(f *v1alpha1.Federation, config string) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(CoordinatorName(f.Name), f.Namespace).
		WithLabels(Labels(f.Name, ComponentCoordinator)).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithData(map[string]string{ConfigKey: config})
}

// commits is the claim for the commit log. It is a claim of its own and no
// volumeClaimTemplate, because a template can never change: this one grows where
// the storage class allows it, once it is bound, and its reclaim policy may change
// at any time. Retain leaves it without an owner, so it outlives its federation;
// one of the same name takes the run up again.
func commits(f *v1alpha1.Federation) *corev1ac.PersistentVolumeClaimApplyConfiguration {
	storage := f.Spec.Coordinator.Storage
	size := resource.MustParse("20Gi")
	if storage.Size != nil {
		size = *storage.Size
	}
	spec := corev1ac.PersistentVolumeClaimSpec().
		WithAccessModes(corev1.ReadWriteOnce).
		WithResources(corev1ac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: size}))
	if storage.ClassName != nil {
		spec.WithStorageClassName(*storage.ClassName)
	}
	claim := corev1ac.PersistentVolumeClaim(CommitsName(f.Name), f.Namespace).
		WithLabels(Labels(f.Name, ComponentCoordinator)).
		WithSpec(spec)
	if storage.ReclaimPolicy == v1alpha1.ReclaimDelete {
		claim.WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation))
	}
	return claim
}

func coordinatorService(f *v1alpha1.Federation) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service(CoordinatorName(f.Name), f.Namespace).
		WithLabels(Labels(f.Name, ComponentCoordinator)).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithSelector(selector(f.Name, ComponentCoordinator)).
			WithPorts(
				corev1ac.ServicePort().WithName("grpc").WithPort(GRPCPort).WithProtocol(corev1.ProtocolTCP).
					WithTargetPort(intstr.FromString("grpc")).WithAppProtocol("grpc"),
				corev1ac.ServicePort().WithName("metrics").WithPort(MetricsPort).WithProtocol(corev1.ProtocolTCP).
					WithTargetPort(intstr.FromString("metrics")).WithAppProtocol("http"),
			))
}

// coordinatorDisruptionBudget lets nobody evict the one coordinator unasked.
func coordinatorDisruptionBudget(f *v1alpha1.Federation) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	return policyv1ac.PodDisruptionBudget(CoordinatorName(f.Name), f.Namespace).
		WithLabels(Labels(f.Name, ComponentCoordinator)).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMinAvailable(intstr.FromInt32(1)).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector(f.Name, ComponentCoordinator))))
}

func coordinator(f *v1alpha1.Federation, configHash string, images Images) *appsv1ac.StatefulSetApplyConfiguration {
	spec := f.Spec.Coordinator
	image := spec.Image
	if image == "" {
		image = images.Coordinator
	}
	pod := restrictedPod().
		WithServiceAccountName(CoordinatorName(f.Name)).
		WithImagePullSecrets(pullSecrets(spec.ImagePullSecrets)...).
		WithTerminationGracePeriodSeconds(coordinatorGrace).
		WithNodeSelector(spec.NodeSelector).
		WithTolerations(tolerations(spec.Tolerations)...).
		WithAffinity(awayFromTraining()).
		WithContainers(restrictedContainer("coordinator", image).
			WithArgs(coordinatorArgs(f)...).
			WithEnv(redisEnv(f)...).
			WithPorts(port("grpc", GRPCPort), port("metrics", MetricsPort)).
			WithResources(resources(spec.Resources, corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
			}, nil)).
			// Reading a long commit log back takes its time before anything answers.
			WithStartupProbe(probe("/healthz", 5, 120)).
			WithLivenessProbe(probe("/healthz", 10, 6)).
			WithReadinessProbe(probe("/readyz", 5, 3)).
			WithVolumeMounts(mount("config", configFolder).WithReadOnly(true), mount("commits", commitsFolder))).
		WithVolumes(
			corev1ac.Volume().WithName("config").WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(CoordinatorName(f.Name))),
			corev1ac.Volume().WithName("commits").WithPersistentVolumeClaim(corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(CommitsName(f.Name))),
		)
	mountTLS(pod, f, CoordinatorSecretName(f.Name))
	labels := Labels(f.Name, ComponentCoordinator)
	return appsv1ac.StatefulSet(CoordinatorName(f.Name), f.Namespace).
		WithLabels(labels).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithSpec(appsv1ac.StatefulSetSpec().
			WithReplicas(1). // two could not commit anyway: the commit log fences
			WithServiceName(CoordinatorName(f.Name)).
			// Ordered, a coordinator that cannot start (a wrong image) would stand in the
			// way of the one that can.
			WithPodManagementPolicy(appsv1.ParallelPodManagement).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector(f.Name, ComponentCoordinator))).
			WithTemplate(corev1ac.PodTemplateSpec().
				WithLabels(labels).
				WithAnnotations(map[string]string{configHashAnnotation: configHash}).
				WithSpec(pod)))
}

func coordinatorArgs(f *v1alpha1.Federation) []string {
	heartbeat := defaultHeartbeat
	if s := f.Spec.Coordinator.HeartbeatSeconds; s > 0 {
		heartbeat = time.Duration(s) * time.Second
	}
	args := []string{
		"--config=" + configFolder + "/" + ConfigKey,
		"--data=" + commitsFolder + "/commits", // ext4 keeps lost+found at the root
		fmt.Sprintf("--listen=:%d", GRPCPort),
		fmt.Sprintf("--metrics-listen=:%d", MetricsPort),
		"--signals=external",
		"--heartbeat=" + heartbeat.String(),
		"--log-format=json",
	}
	return append(append(args, linkArgs(f)...), redisArgs(f)...)
}

// awayFromTraining keeps the coordinator off enrolled nodes: those sleep.
func awayFromTraining() *corev1ac.AffinityApplyConfiguration {
	return corev1ac.Affinity().WithNodeAffinity(corev1ac.NodeAffinity().
		WithRequiredDuringSchedulingIgnoredDuringExecution(corev1ac.NodeSelector().
			WithNodeSelectorTerms(corev1ac.NodeSelectorTerm().
				WithMatchExpressions(corev1ac.NodeSelectorRequirement().
					WithKey(v1alpha1.LabelAgent).WithOperator(corev1.NodeSelectorOpDoesNotExist)))))
}
