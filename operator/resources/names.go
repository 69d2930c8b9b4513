package resources

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Ports of the coordinator, and of the agents' metrics.
const (
	GRPCPort    = 7465
	MetricsPort = 9465
)

// Components, the values of app.kubernetes.io/component.
const (
	ComponentCoordinator = "coordinator"
	ComponentAgent       = "agent"
	ComponentRedis       = "redis"
	ComponentOperator    = "operator"
)

// Labels on everything of a federation.
const (
	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelManagedBy = "app.kubernetes.io/managed-by"
	labelComponent = "app.kubernetes.io/component"
)

// maxName of an object, so that it may stand in a label too.
const maxName = 63

// Names of what belongs to a federation. Two federations or sites of one
// namespace can come to the same name ("a" with site "b-c", "a-b" with site "c");
// the applier then leaves the object with its owner and says so.

// CoordinatorName is the name of the coordinator's StatefulSet, Service,
// ConfigMap, PodDisruptionBudget, NetworkPolicy and ServiceAccount.
func CoordinatorName(federation string) string { return name(federation, "coordinator") }

// CommitsName is the claim with the commit log.
func CommitsName(federation string) string { return name(federation, "commits") }

// RedisName is what belongs to a trial's Redis.
func RedisName(federation string) string { return name(federation, "redis") }

// AgentAccountName is the agents' ServiceAccount.
func AgentAccountName(federation string) string { return name(federation, "agent") }

// AuthoritySecretName is the Secret of the operator's own authority; a federation
// with spec.link.caSecret has none.
func AuthoritySecretName(federation string) string { return name(federation, "ca") }

// CoordinatorSecretName is the Secret of the coordinator's certificate.
func CoordinatorSecretName(federation string) string { return name(federation, "coordinator-tls") }

// OperatorSecretName is the Secret of the operator's certificate.
func OperatorSecretName(federation string) string { return name(federation, "operator-tls") }

// SiteSecretName is the Secret of a site's certificate.
func SiteSecretName(federation, site string) string { return name(federation, "site", site, "tls") }

// AgentName is the DaemonSet of a site's agents on nodes of one vendor.
func AgentName(federation, site string, vendor v1alpha1.Vendor) string {
	return name(federation, site, VendorLabel(vendor))
}

// VendorLabel is the value of the label girassol.dev/agent.
func VendorLabel(vendor v1alpha1.Vendor) string { return strings.ToLower(string(vendor)) }

// EnrolledFor is the value of the label girassol.dev/enrolled-for on the nodes of
// a site: <namespace>.<site>, or its beginning with a hash where that is too long.
func EnrolledFor(namespace, site string) string {
	whole := namespace + "." + site
	if len(whole) <= maxName {
		return whole
	}
	// An underscore is in no namespace and no site, so no other site can have this.
	const digits = 24
	return strings.TrimRight(whole[:maxName-digits-1], "-.") + "_" + hash(whole)[:digits]
}

// CoordinatorAddress is the coordinator's Service, host:port.
func CoordinatorAddress(f *v1alpha1.Federation) string {
	return fmt.Sprintf("%s.%s.svc:%d", CoordinatorName(f.Name), f.Namespace, GRPCPort)
}

// CoordinatorHosts are the names in the coordinator's certificate: those of its
// Service and the host of spec.link.address.
func CoordinatorHosts(f *v1alpha1.Federation) []string {
	service := CoordinatorName(f.Name)
	hosts := []string{service, service + "." + f.Namespace, service + "." + f.Namespace + ".svc", service + "." + f.Namespace + ".svc.cluster.local"}
	if h := hostOf(f.Spec.Link.Address); h != "" {
		hosts = append(hosts, h)
	}
	return hosts
}

// RedisAddress is the trial's Redis, host:port.
func RedisAddress(f *v1alpha1.Federation) string {
	return fmt.Sprintf("%s.%s.svc:%d", RedisName(f.Name), f.Namespace, redisPort)
}

// AgentSelector selects the pods of all agents of a federation.
func AgentSelector(federation string) string {
	return v1alpha1.LabelFederation + "=" + federation + "," + labelComponent + "=" + ComponentAgent
}

// Labels of what belongs to a federation, by component.
func Labels(federation, component string) map[string]string {
	return map[string]string{
		v1alpha1.LabelFederation: federation,
		labelName:                "girassol-" + component,
		labelInstance:            federation,
		labelManagedBy:           v1alpha1.FieldOwner,
		labelComponent:           component,
	}
}

// AgentLabels of a site's DaemonSet and its pods.
func AgentLabels(federation, site string, vendor v1alpha1.Vendor) map[string]string {
	l := Labels(federation, ComponentAgent)
	l[v1alpha1.LabelSite] = site
	l[v1alpha1.LabelAgent] = VendorLabel(vendor)
	return l
}

// name joins parts to a DNS label; too long a one keeps its beginning and gets a
// hash of all.
func name(parts ...string) string {
	whole := strings.Join(parts, "-")
	if len(whole) <= maxName {
		return whole
	}
	const digits = 10
	return strings.TrimRight(whole[:maxName-digits-1], "-.") + "-" + hash(strings.Join(parts, "/"))[:digits]
}

func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}
