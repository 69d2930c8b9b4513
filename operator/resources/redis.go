package resources

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

const redisPort = 6379

// redis is a small Redis without storage: rounds do without it, and after its
// restart readers catch up from the coordinator.
func redis(f *v1alpha1.Federation, image string) []runtime.ApplyConfiguration {
	labels := Labels(f.Name, ComponentRedis)
	pod := restrictedPod().
		WithServiceAccountName(RedisName(f.Name)).
		WithImagePullSecrets(pullSecrets(f.Spec.Coordinator.ImagePullSecrets)...).
		WithTerminationGracePeriodSeconds(10).
		WithAffinity(awayFromTraining()).
		WithContainers(restrictedContainer("redis", image).
			// Its NetworkPolicy says who may come; the coordinator bounds its streams.
			WithArgs("--port", strconv.Itoa(redisPort), "--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", "/tmp").
			WithPorts(port("redis", redisPort)).
			WithResources(corev1ac.ResourceRequirements().
				WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi")}).
				WithLimits(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("160Mi")})).
			WithReadinessProbe(corev1ac.Probe().
				WithTCPSocket(corev1ac.TCPSocketAction().WithPort(intstr.FromString("redis"))).
				WithPeriodSeconds(5).WithTimeoutSeconds(5).WithFailureThreshold(3)).
			WithVolumeMounts(mount("tmp", "/tmp"))).
		WithVolumes(corev1ac.Volume().WithName("tmp").WithEmptyDir(corev1ac.EmptyDirVolumeSource()))
	return []runtime.ApplyConfiguration{
		serviceAccount(f, RedisName(f.Name), ComponentRedis),
		redisNetworkPolicy(f),
		corev1ac.Service(RedisName(f.Name), f.Namespace).
			WithLabels(labels).
			WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
			WithSpec(corev1ac.ServiceSpec().
				WithType(corev1.ServiceTypeClusterIP).
				WithSelector(selector(f.Name, ComponentRedis)).
				WithPorts(corev1ac.ServicePort().WithName("redis").WithPort(redisPort).WithProtocol(corev1.ProtocolTCP).
					WithTargetPort(intstr.FromString("redis")).WithAppProtocol("redis"))),
		appsv1ac.Deployment(RedisName(f.Name), f.Namespace).
			WithLabels(labels).
			WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
			WithSpec(appsv1ac.DeploymentSpec().
				WithReplicas(1).
				WithStrategy(appsv1ac.DeploymentStrategy().WithType(appsv1.RecreateDeploymentStrategyType)).
				WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector(f.Name, ComponentRedis))).
				WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).WithSpec(pod))),
	}
}
