package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// LinkMode says what protects the link between agents and coordinator.
//
// +kubebuilder:validation:Enum=MTLS;WireGuard;Mesh
type LinkMode string

// Link modes.
const (
	// LinkMTLS: both ends prove themselves with certificates of the federation's
	// own authority; a site's name stands in its certificate. Default.
	LinkMTLS LinkMode = "MTLS"
	// LinkWireGuard: a tunnel of the product's own; a site's name belongs to its
	// tunnel key, which its certificate or the coordinator's file of peers has vouched
	// for. Not on Kubernetes.
	LinkWireGuard LinkMode = "WireGuard"
	// LinkMesh: plaintext inside a mesh that encrypts below (Cilium, Linkerd). A
	// site's name is then what its agent says.
	LinkMesh LinkMode = "Mesh"
)

// LinkSpec says how agents and coordinator reach each other.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.mode) && self.mode == 'WireGuard') && !has(self.wireGuard)",message="a WireGuard tunnel of the product's own is for coordinators that run outside Kubernetes; here take mode MTLS, or Mesh where the cluster's network encrypts (Cilium, Linkerd)",fieldPath=".mode"
type LinkSpec struct {
	// +optional
	Mode LinkMode `json:"mode,omitempty"`
	// WireGuard, for that mode.
	// +optional
	WireGuard *WireGuardSpec `json:"wireGuard,omitempty"`
	// CASecret holds the authority's tls.crt and tls.key, from which certificates
	// are issued. Unset: the operator makes one of its own.
	// +optional
	CASecret *SecretReference `json:"caSecret,omitempty"`
	// Address at which agents outside the cluster reach the coordinator,
	// host:port; the coordinator's certificate carries its host.
	// +optional
	// +kubebuilder:validation:MaxLength=261
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^([a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?|[[][0-9a-fA-F:.]+[]]):[0-9]{1,5}$')",message="address is host:port without a scheme, such as coordinator.example.com:7465 or [2001:db8::1]:7465"
	Address string `json:"address,omitempty"`
}

// TunnelDevice is where a WireGuard tunnel ends.
//
// +kubebuilder:validation:Enum=Userspace;Kernel
type TunnelDevice string

// Tunnel devices.
const (
	// TunnelUserspace needs no rights: the network stack is the process's own. Default.
	TunnelUserspace TunnelDevice = "Userspace"
	// TunnelKernel is a TUN device; it needs NET_ADMIN and /dev/net/tun.
	TunnelKernel TunnelDevice = "Kernel"
)

// WireGuardSpec of the coordinator's end, the hub that sites dial.
type WireGuardSpec struct {
	// Device; agents have a flag of their own.
	// +optional
	Device TunnelDevice `json:"device,omitempty"`
	// Endpoint at which sites reach the hub by UDP, host:port.
	// +optional
	// +kubebuilder:validation:MaxLength=261
	Endpoint string `json:"endpoint,omitempty"`
	// MTU of packets inside the tunnel. Default 1420; 1280 gets through every path.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65455
	MTU int32 `json:"mtu,omitempty"`
}

// ReclaimPolicy says what becomes of the commit log with its federation.
//
// +kubebuilder:validation:Enum=Retain;Delete
type ReclaimPolicy string

// Reclaim policies.
const (
	// ReclaimRetain keeps the volume. Default: a night of training is worth more
	// than a disk.
	ReclaimRetain ReclaimPolicy = "Retain"
	ReclaimDelete ReclaimPolicy = "Delete"
)

// CoordinatorSpec says where and how the coordinator runs.
type CoordinatorSpec struct {
	// Image; unset is the operator's default.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// ImagePullSecrets for the coordinator and a trial's Redis.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []SecretReference `json:"imagePullSecrets,omitempty"`
	// +optional
	Storage StorageSpec `json:"storage,omitzero"`
	// +optional
	Resources ResourcesSpec `json:"resources,omitzero"`
	// NodeSelector of the node; it never runs on a node that is enrolled for
	// training, because those sleep.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// HeartbeatSeconds between an agent's heartbeats. Default 5.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=300
	HeartbeatSeconds int32 `json:"heartbeatSeconds,omitempty"`
}

// StorageSpec is the volume of the commit log.
type StorageSpec struct {
	// Size. Default 20Gi. Six times the model's fp32 size is enough.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// ClassName of the storage; unset is the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClassName *string `json:"className,omitempty"`
	// ReclaimPolicy: Retain (default) or Delete.
	// +optional
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`
}

// ResourcesSpec of one container.
type ResourcesSpec struct {
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	Requests map[string]resource.Quantity `json:"requests,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	Limits map[string]resource.Quantity `json:"limits,omitempty"`
}

// Toleration of a taint, as in a pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && size(self.key) > 0",message="a toleration needs a key: one that tolerates everything would keep agents on nodes that are going away"
// +kubebuilder:validation:XValidation:rule="!(has(self.operator) && self.operator == 'Exists' && has(self.value) && size(self.value) > 0)",message="a toleration with operator Exists takes any value: leave value out, or take Equal"
type Toleration struct {
	// +kubebuilder:validation:MaxLength=316
	Key string `json:"key"`
	// Operator is Exists or Equal (default).
	// +optional
	// +kubebuilder:validation:Enum=Exists;Equal
	Operator string `json:"operator,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect string `json:"effect,omitempty"`
}

// AgentSpec says how agents and trainers run on the nodes of sites with
// spec.nodes. Each pod has two containers, agent and trainer, which share a
// memory volume with the trainer API's socket; the trainer gets the GPUs.
type AgentSpec struct {
	// Image of the agent; unset is the operator's default.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// +optional
	Resources ResourcesSpec `json:"resources,omitzero"`
	// WorkSize of the memory volume that agent and trainer share. Default 8Gi; three times the
	// model's size is enough.
	// +optional
	WorkSize *resource.Quantity `json:"workSize,omitempty"`
	// DataPath on the node where the agent keeps model and residual over restarts.
	// Unset: they live as long as the pod, and a returning site pulls the model.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || (self.startsWith('/') && self != '/' && !self.contains('..'))",message="dataPath is an absolute path below / without .."
	DataPath string `json:"dataPath,omitempty"`
	// MeasureProcessors mounts the node's /sys/class/powercap read-only into the agents'
	// pods, where they read the processors' energy. The kernel lets only root read it:
	// give it to group 65532 on the nodes (docs/energy.md). Pods with it are not within
	// the Pod Security Standards baseline and restricted. GPUs are measured without.
	// +optional
	MeasureProcessors bool `json:"measureProcessors,omitempty"`
	// PriorityClassName of the pods; not a system class.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system-')",message="agents are not system pods: they could preempt paying tenants; take a class of your own"
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// ImagePullSecrets for agent and trainer.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []SecretReference `json:"imagePullSecrets,omitempty"`
	// Trainer container.
	// +optional
	Trainer TrainerSpec `json:"trainer,omitzero"`
	// Vendors override by kind of GPU.
	// +optional
	// +listType=map
	// +listMapKey=vendor
	// +kubebuilder:validation:MaxItems=3
	Vendors []VendorSpec `json:"vendors,omitempty"`
}

// TrainerSpec is the user's container. Without an image it is the byte-level
// transformer that the agent's image holds; Args are then its flags.
type TrainerSpec struct {
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// Command and Args in exec form.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	Command []string `json:"command,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	Args []string `json:"args,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []EnvVar `json:"env,omitempty"`
	// Resources besides the GPUs, of which it gets all of a node.
	// +optional
	Resources ResourcesSpec `json:"resources,omitzero"`
	// Volumes mounted into the trainer.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Volumes []TrainerVolume `json:"volumes,omitempty"`
}

// EnvVar of a trainer: a value or one key of a Secret.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.value) && size(self.value) > 0 && has(self.secret))",message="give value or secret, not both"
type EnvVar struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[!-<>-~]+$')",message="a variable's name has printable ASCII characters, without '=' and spaces"
	Name string `json:"name"`
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
	// +optional
	Secret *SecretKeyReference `json:"secret,omitempty"`
}

// TrainerVolume is a claim, a ConfigMap or a folder of the node.
//
// +kubebuilder:validation:XValidation:rule="(has(self.claimName) && size(self.claimName) > 0 ? 1 : 0) + (has(self.configMapName) && size(self.configMapName) > 0 ? 1 : 0) + (has(self.hostPath) && size(self.hostPath) > 0 ? 1 : 0) == 1",message="give exactly one of claimName, configMapName and hostPath"
type TrainerVolume struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=50
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a volume's name has lower-case letters, digits and '-', and begins and ends with a letter or digit"
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains(':')",message="mountPath is an absolute path without ':'"
	MountPath string `json:"mountPath"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ConfigMapName string `json:"configMapName,omitempty"`
	// HostPath is read only.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || (self.startsWith('/') && !self.contains('..'))",message="hostPath is an absolute path without .."
	HostPath string `json:"hostPath,omitempty"`
}

// Vendor of GPUs.
//
// +kubebuilder:validation:Enum=NVIDIA;AMD;CPU
type Vendor string

// Vendors. The label girassol.dev/agent carries them in lower case.
const (
	VendorNVIDIA Vendor = "NVIDIA"
	VendorAMD    Vendor = "AMD"
	// VendorCPU: nodes without GPUs, for tests and small models.
	VendorCPU Vendor = "CPU"
)

// VendorSpec overrides for one kind of GPU.
type VendorSpec struct {
	Vendor Vendor `json:"vendor"`
	// ResourceName of the devices. Default nvidia.com/gpu and amd.com/gpu.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ResourceName string `json:"resourceName,omitempty"`
	// RuntimeClassName of the pods, such as nvidia.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
	// TrainerImage and AgentImage instead of the general ones.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	TrainerImage string `json:"trainerImage,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=512
	AgentImage string `json:"agentImage,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// SupplementalGroups of the host that the pods' user joins, such as the one of
	// render, to which AMD's devices often belong: no root runs in the pods.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=1
	SupplementalGroups []int64 `json:"supplementalGroups,omitempty"`
}
