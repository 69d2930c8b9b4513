package resources

import (
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// user that all containers run as. Agent and trainer share it, because the
// trainer API's socket is its owner's alone.
const user int64 = 65532

// redisURLVariable holds the Redis URL where it is a secret.
const redisURLVariable = "GIRASSOL_REDIS_URL"

func owner(o metav1.ObjectMeta, kind string) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.APIVersion).WithKind(kind).WithName(o.Name).WithUID(o.UID).WithController(true)
}

// selector of a component's pods: what never changes of their labels.
func selector(federation, component string) map[string]string {
	return map[string]string{v1alpha1.LabelFederation: federation, labelComponent: component}
}

func serviceAccount(f *v1alpha1.Federation, name, component string) *corev1ac.ServiceAccountApplyConfiguration {
	return corev1ac.ServiceAccount(name, f.Namespace).
		WithLabels(Labels(f.Name, component)).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithAutomountServiceAccountToken(false)
}

// restrictedPod is a pod within the Pod Security Standard "restricted" that has
// no business with the API server.
func restrictedPod() *corev1ac.PodSpecApplyConfiguration {
	return corev1ac.PodSpec().
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsNonRoot(true).WithRunAsUser(user).WithRunAsGroup(user).
			WithFSGroup(user).WithFSGroupChangePolicy(corev1.FSGroupChangeOnRootMismatch).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault)))
}

func pullSecrets(refs []v1alpha1.SecretReference) []*corev1ac.LocalObjectReferenceApplyConfiguration {
	var out []*corev1ac.LocalObjectReferenceApplyConfiguration
	for _, ref := range refs {
		out = append(out, corev1ac.LocalObjectReference().WithName(ref.Name))
	}
	return out
}

func restrictedContainer(name, image string) *corev1ac.ContainerApplyConfiguration {
	return corev1ac.Container().WithName(name).WithImage(image).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL")))
}

func port(name string, number int32) *corev1ac.ContainerPortApplyConfiguration {
	return corev1ac.ContainerPort().WithName(name).WithContainerPort(number).WithProtocol(corev1.ProtocolTCP)
}

func mount(name, path string) *corev1ac.VolumeMountApplyConfiguration {
	return corev1ac.VolumeMount().WithName(name).WithMountPath(path)
}

// probe asks the plaintext port of metrics and health: the kubelet has no
// certificate.
func probe(path string, period, failures int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().
		WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("metrics"))).
		WithPeriodSeconds(period).WithTimeoutSeconds(5).WithFailureThreshold(failures)
}

// resources as asked for; without requests those of fallback. Extra are limits of
// our own.
func resources(spec v1alpha1.ResourcesSpec, fallback, extra corev1.ResourceList) *corev1ac.ResourceRequirementsApplyConfiguration {
	requests, limits := list(spec.Requests), list(spec.Limits)
	if len(requests) == 0 && len(limits) == 0 {
		requests = fallback
	}
	for k, v := range extra {
		limits[k] = v
	}
	r := corev1ac.ResourceRequirements()
	if len(requests) > 0 {
		r.WithRequests(requests)
	}
	if len(limits) > 0 {
		r.WithLimits(limits)
	}
	return r
}

func list(m map[string]resource.Quantity) corev1.ResourceList {
	l := corev1.ResourceList{}
	for k, v := range m {
		l[corev1.ResourceName(k)] = v
	}
	return l
}

func tolerations(specs []v1alpha1.Toleration) []*corev1ac.TolerationApplyConfiguration {
	var out []*corev1ac.TolerationApplyConfiguration
	for _, s := range specs {
		t := corev1ac.Toleration().WithKey(s.Key).WithOperator(corev1.TolerationOpEqual)
		if s.Operator != "" {
			t.WithOperator(corev1.TolerationOperator(s.Operator))
		}
		if s.Value != "" {
			t.WithValue(s.Value)
		}
		if s.Effect != "" {
			t.WithEffect(corev1.TaintEffect(s.Effect))
		}
		out = append(out, t)
	}
	return out
}

// mesh says whether something below encrypts.
func mesh(f *v1alpha1.Federation) bool { return f.Spec.Link.Mode == v1alpha1.LinkMesh }

// mountTLS mounts a certificate into the first container.
func mountTLS(pod *corev1ac.PodSpecApplyConfiguration, f *v1alpha1.Federation, secret string) {
	if mesh(f) {
		return
	}
	pod.Containers[0].WithVolumeMounts(mount("tls", tlsFolder).WithReadOnly(true))
	pod.WithVolumes(corev1ac.Volume().WithName("tls").WithSecret(corev1ac.SecretVolumeSource().
		WithSecretName(secret).WithDefaultMode(0o440)))
}

// linkArgs of both ends. Certificates are read again for each connection, so a
// renewed one restarts nobody.
func linkArgs(f *v1alpha1.Federation) []string {
	if mesh(f) {
		return []string{"--insecure"}
	}
	return []string{
		"--tls-cert=" + tlsFolder + "/" + CertificateKey,
		"--tls-key=" + tlsFolder + "/" + PrivateKeyKey,
		"--tls-ca=" + tlsFolder + "/" + AuthorityKey,
	}
}

// trial says whether the federation runs a Redis of its own.
func trial(f *v1alpha1.Federation) bool {
	r := f.Spec.Events.Redis
	return r != nil && r.Mode == v1alpha1.RedisTrial
}

// redisArgs of both ends. A URL that is a secret is in the environment alone:
// whatever is in arguments can be read by every process of the node.
func redisArgs(f *v1alpha1.Federation) []string {
	r := f.Spec.Events.Redis
	switch {
	case r == nil:
		return nil
	case trial(f):
		return []string{"--redis=redis://" + RedisAddress(f) + "/0"}
	case r.URLSecret != nil:
		return redisTLSArgs(r)
	case r.URL != "":
		return append([]string{"--redis=" + literal(r.URL)}, redisTLSArgs(r)...)
	}
	var args []string
	for _, a := range r.Addresses {
		args = append(args, "--redis-address="+literal(a))
	}
	if r.MasterName != "" {
		args = append(args, "--redis-master-name="+literal(r.MasterName))
	}
	return append(args, redisTLSArgs(r)...)
}

// redisTLSArgs are those that need no file: the schema refuses the others.
func redisTLSArgs(r *v1alpha1.RedisSpec) []string {
	if r.TLS == nil {
		return nil
	}
	args := []string{"--redis-tls"}
	if r.TLS.ServerName != "" {
		args = append(args, "--redis-tls-server-name="+literal(r.TLS.ServerName))
	}
	return args
}

// redisEnv carries a secret URL: a reference keeps it out of the object.
func redisEnv(f *v1alpha1.Federation) []*corev1ac.EnvVarApplyConfiguration {
	if r := f.Spec.Events.Redis; r != nil && r.URLSecret != nil && !trial(f) {
		return []*corev1ac.EnvVarApplyConfiguration{secretEnv(redisURLVariable, *r.URLSecret)}
	}
	return nil
}

func secretEnv(name string, ref v1alpha1.SecretKeyReference) *corev1ac.EnvVarApplyConfiguration {
	return corev1ac.EnvVar().WithName(name).WithValueFrom(corev1ac.EnvVarSource().
		WithSecretKeyRef(corev1ac.SecretKeySelector().WithName(ref.Name).WithKey(ref.Key)))
}

// literal keeps the kubelet from expanding $(NAME) in an argument.
func literal(s string) string { return strings.ReplaceAll(s, "$", "$$") }

// hostOf is the host of host:port, or of a host alone.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}
