package testenv

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mounts are paths in a container and the folders that stand for them.
type mounts map[string]string

// replace puts folders for the paths, the longest that fits, where each stands as
// a whole. What it put is not looked at again.
func (m mounts) replace(s string) string {
	var out strings.Builder
	for s != "" {
		path := m.at(s)
		whole := path != "" && (out.Len() == 0 || strings.ContainsRune("=:,", rune(out.String()[out.Len()-1])))
		if whole {
			out.WriteString(m[path])
			s = s[len(path):]
			continue
		}
		out.WriteByte(s[0])
		s = s[1:]
	}
	return out.String()
}

// at is the longest path at the beginning of s.
func (m mounts) at(s string) string {
	best := ""
	for path := range m {
		rest, ok := strings.CutPrefix(s, path)
		if ok && len(path) > len(best) && (rest == "" || strings.ContainsRune("/:,", rune(rest[0]))) {
			best = path
		}
	}
	return best
}

// mount makes the folders of the pod's volumes; it waits for Secrets and the like
// until they are there. ok is false when the pod is to end before.
func (p *pod) mount() (folders map[string]string, ok bool) {
	folders = map[string]string{}
	for _, v := range p.object.Spec.Volumes {
		said := false
		for {
			folder, err := p.volume(v)
			if err == nil {
				folders[v.Name] = folder
				break
			}
			if !said {
				said = true
				p.k.t.Logf("kubelet: pod %s waits for volume %s: %v", p.object.Name, v.Name, err)
			}
			select {
			case <-p.ending:
				return nil, false
			case <-p.dead:
				return nil, false
			case <-p.k.stopped:
				return nil, false
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return folders, true
}

func (p *pod) volume(v corev1.Volume) (string, error) {
	ctx, folder := context.Background(), filepath.Join(p.dir, v.Name)
	key := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: p.object.Namespace, Name: name}
	}
	files := map[string][]byte{}
	switch {
	case v.EmptyDir != nil:
	case v.Secret != nil:
		var s corev1.Secret
		if err := p.k.client.Get(ctx, key(v.Secret.SecretName), &s); err != nil {
			return "", err
		}
		chosen(files, s.Data, v.Secret.Items)
	case v.ConfigMap != nil:
		var m corev1.ConfigMap
		if err := p.k.client.Get(ctx, key(v.ConfigMap.Name), &m); err != nil {
			return "", err
		}
		chosen(files, bytesOf(m), v.ConfigMap.Items)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			switch {
			case source.Secret != nil:
				var s corev1.Secret
				if err := p.k.client.Get(ctx, key(source.Secret.Name), &s); err != nil {
					return "", err
				}
				chosen(files, s.Data, source.Secret.Items)
			case source.ConfigMap != nil:
				var m corev1.ConfigMap
				if err := p.k.client.Get(ctx, key(source.ConfigMap.Name), &m); err != nil {
					return "", err
				}
				chosen(files, bytesOf(m), source.ConfigMap.Items)
			}
		}
	case v.HostPath != nil:
		folder = p.k.Disk(p.object.Spec.NodeName, v.HostPath.Path)
	case v.PersistentVolumeClaim != nil:
		var claim corev1.PersistentVolumeClaim
		if err := p.k.client.Get(ctx, key(v.PersistentVolumeClaim.ClaimName), &claim); err != nil {
			return "", err
		}
		var pv corev1.PersistentVolume
		if err := p.k.client.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, &pv); err != nil {
			return "", err
		}
		if pv.Spec.HostPath == nil {
			return "", fmt.Errorf("persistent volume %s has no hostPath", pv.Name)
		}
		folder = pv.Spec.HostPath.Path
	default:
		return "", fmt.Errorf("volume %s is of a kind that the test bench does not have", v.Name)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return "", err
		}
	}
	return folder, nil
}

func bytesOf(m corev1.ConfigMap) map[string][]byte {
	data := maps.Clone(m.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for name, text := range m.Data {
		data[name] = []byte(text)
	}
	return data
}

// chosen copies the keys that a volume wants to its files.
func chosen(files, data map[string][]byte, items []corev1.KeyToPath) {
	if len(items) == 0 {
		maps.Copy(files, data)
		return
	}
	for _, i := range items {
		files[i.Path] = data[i.Key]
	}
}
