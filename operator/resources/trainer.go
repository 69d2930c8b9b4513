package resources

import (
	"errors"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

const (
	tmpFolder = "/tmp"
	// shmFolder: loaders of training data hand batches over in it, and the 64 MiB of
	// a container's own are soon full.
	shmFolder = "/dev/shm"
	// reserved begins the names of variables that are not the user's.
	reserved = "GIRASSOL_"
	// volumePrefix keeps the user's volumes apart from ours.
	volumePrefix = "trainer-"
)

// trainerContainer is the user's container, or without an image the trainer that
// the agent's image holds. It gets all GPUs of the node. Its file system can be
// written to, because frameworks write where they please; in all else it is as
// restricted as the agent.
//
// It gets SIGTERM together with the agent. A trainer that ends the step at work
// loses nothing by it; one that knows no SIGTERM does not see it as a container's
// first process, and is told by the agent to finish.
func trainerContainer(in AgentInput, vendor v1alpha1.VendorSpec) (*corev1ac.ContainerApplyConfiguration, []*corev1ac.VolumeApplyConfiguration, error) {
	spec := in.Federation.Spec.Agent.Trainer
	gpus, err := gpuLimit(in, vendor)
	if err != nil {
		return nil, nil, err
	}
	image, args := vendor.TrainerImage, spec.Args
	if image == "" {
		image = spec.Image
	}
	builtIn := image == "" && len(spec.Command) == 0
	if image == "" {
		image = agentImage(in, vendor)
	}
	if builtIn {
		args = append([]string{"trainer"}, args...)
	}
	env, err := trainerEnv(spec)
	if err != nil {
		return nil, nil, err
	}
	mounts, volumes, err := trainerVolumes(spec)
	if err != nil {
		return nil, nil, err
	}
	c := restrictedContainer("trainer", image).
		WithCommand(spec.Command...).
		WithArgs(args...).
		WithEnv(env...).
		WithResources(resources(spec.Resources, nil, gpus)).
		WithVolumeMounts(mounts...)
	c.SecurityContext.WithReadOnlyRootFilesystem(builtIn)
	return c, volumes, nil
}

func gpuLimit(in AgentInput, vendor v1alpha1.VendorSpec) (corev1.ResourceList, error) {
	if in.Vendor == v1alpha1.VendorCPU {
		return nil, nil
	}
	if in.GPUs < 1 {
		return nil, errors.New("the number of GPUs of a node is not known: keep the DaemonSet as it is until one shows them")
	}
	name := in.Resource
	if name == "" {
		name = strings.ToLower(string(in.Vendor)) + ".com/gpu"
	}
	if vendor.ResourceName != "" {
		name = vendor.ResourceName
	}
	r := in.Federation.Spec.Agent.Trainer.Resources
	for _, m := range []map[string]resource.Quantity{r.Requests, r.Limits} {
		if _, ok := m[name]; ok {
			return nil, invalid("spec.agent.trainer.resources", "leave %s out: the trainer gets all of a node's", name)
		}
	}
	return corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(int64(in.GPUs), resource.DecimalSI)}, nil
}

func trainerEnv(spec v1alpha1.TrainerSpec) ([]*corev1ac.EnvVarApplyConfiguration, error) {
	env := []*corev1ac.EnvVarApplyConfiguration{
		corev1ac.EnvVar().WithName(trainerv1.EnvSocket).WithValue(socketPath),
		corev1ac.EnvVar().WithName(trainerv1.EnvWorkDir).WithValue(workFolder),
	}
	home := false
	for _, e := range spec.Env {
		home = home || e.Name == "HOME"
		switch {
		case strings.HasPrefix(e.Name, reserved):
			return nil, invalid("spec.agent.trainer.env", "%s: names that begin with %s are the agent's; take another", e.Name, reserved)
		case e.Secret != nil:
			env = append(env, secretEnv(e.Name, *e.Secret))
		default:
			env = append(env, corev1ac.EnvVar().WithName(e.Name).WithValue(e.Value))
		}
	}
	if !home { // the user has no entry in /etc/passwd and / cannot be written to
		env = append(env, corev1ac.EnvVar().WithName("HOME").WithValue(tmpFolder))
	}
	return env, nil
}

func trainerVolumes(spec v1alpha1.TrainerSpec) ([]*corev1ac.VolumeMountApplyConfiguration, []*corev1ac.VolumeApplyConfiguration, error) {
	mounts := []*corev1ac.VolumeMountApplyConfiguration{mount("work", workFolder), mount("tmp", tmpFolder), mount("shm", shmFolder)}
	volumes := []*corev1ac.VolumeApplyConfiguration{
		corev1ac.Volume().WithName("tmp").WithEmptyDir(corev1ac.EmptyDirVolumeSource()),
		corev1ac.Volume().WithName("shm").WithEmptyDir(corev1ac.EmptyDirVolumeSource().WithMedium(corev1.StorageMediumMemory)),
	}
	taken := map[string]string{workFolder: "the agent", tmpFolder: "temporary files", shmFolder: "shared memory"}
	for _, v := range spec.Volumes {
		at := path.Clean(v.MountPath)
		if by, ok := taken[at]; ok {
			return nil, nil, invalid("spec.agent.trainer.volumes", "%s: %s is already for %s; take another mountPath", v.Name, at, by)
		}
		if !path.IsAbs(at) || strings.HasPrefix(at, workFolder+"/") || strings.HasPrefix(workFolder, strings.TrimSuffix(at, "/")+"/") {
			return nil, nil, invalid("spec.agent.trainer.volumes", "%s: mountPath %s must be absolute, and neither in nor above %s", v.Name, v.MountPath, workFolder)
		}
		taken[at] = "volume " + v.Name
		name := volumePrefix + v.Name
		volume, m := corev1ac.Volume().WithName(name), mount(name, at)
		switch {
		case v.ClaimName != "":
			volume.WithPersistentVolumeClaim(corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(v.ClaimName))
		case v.ConfigMapName != "":
			volume.WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(v.ConfigMapName))
			m.WithReadOnly(true)
		default:
			volume.WithHostPath(corev1ac.HostPathVolumeSource().WithPath(v.HostPath))
			m.WithReadOnly(true)
		}
		mounts, volumes = append(mounts, m), append(volumes, volume)
	}
	return mounts, volumes, nil
}
