package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const root = "../../.."

func contents() Contents {
	return Contents{Program: programs[0], Version: "1.2.3", Authorities: []byte("a bundle")}
}

func digest(t *testing.T, c Contents, binaries map[string][]byte) string {
	t.Helper()
	index, err := Index(c, binaries)
	if err != nil {
		t.Fatal(err)
	}
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func TestTheDigestFollowsFromTheContents(t *testing.T) {
	binaries := map[string][]byte{"amd64": []byte("x"), "arm64": []byte("y")}
	first := digest(t, contents(), binaries)
	if again := digest(t, contents(), binaries); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	for name, edit := range map[string]func(*Contents){
		"version":     func(c *Contents) { c.Version = "1.2.4" },
		"authorities": func(c *Contents) { c.Authorities = nil },
		"program":     func(c *Contents) { c.Program = programs[1] },
	} {
		c := contents()
		edit(&c)
		if digest(t, c, binaries) == first {
			t.Errorf("another %s has the same digest", name)
		}
	}
	if digest(t, contents(), map[string][]byte{"amd64": []byte("z"), "arm64": []byte("y")}) == first {
		t.Error("another binary has the same digest")
	}
}

// TestTheBuiltImageRunsAsNobodyFromAnEmptyBase builds one for real, twice.
func TestTheBuiltImageRunsAsNobodyFromAnEmptyBase(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the binary in the image is tried on this machine, which is not Linux")
	}
	out := t.TempDir()
	var digests []string
	for _, name := range []string{"a", "b"} {
		if err := run([]string{"-root", root, "-out", filepath.Join(out, name), "-arch", runtime.GOARCH, "-version", "1.2.3", "coordinator"}); err != nil {
			t.Fatal(err)
		}
		digests = append(digests, indexOf(t, filepath.Join(out, name, "girassol-coordinator")).digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("two builds of the same sources differ: %s", strings.Join(digests, ", "))
	}

	image := indexOf(t, filepath.Join(out, "a", "girassol-coordinator")).image
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.OS != "linux" || config.Architecture != runtime.GOARCH ||
		len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/coordinator" || config.Config.Labels["org.opencontainers.image.version"] != "1.2.3" {
		t.Errorf("config %+v", config)
	}
	files := unpack(t, image)
	if !strings.Contains(string(files["etc/passwd"]), ":65532:65532:") {
		t.Error("the user has no entry in /etc/passwd")
	}
	if _, ok := files[caPath]; ok != (config.Config.Labels["dev.girassol.ca-certificates"] != noAuthorities) {
		t.Error("the label does not say whether there are CA certificates")
	}
	path := filepath.Join(out, "coordinator")
	if err := os.WriteFile(path, files["coordinator"], 0o755); err != nil {
		t.Fatal(err)
	}
	isStatic(t, path)
	help, err := exec.Command(path, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "--config") {
		t.Errorf("the binary says %v\n%s", err, help)
	}
	for name := range files {
		switch strings.Split(name, "/")[0] {
		case "etc", "tmp", "coordinator":
		default:
			t.Errorf("the image holds %s", name)
		}
	}
}

type indexed struct {
	digest string
	image  v1.Image
}

// indexOf a valid layout with one tagged index of one image.
func indexOf(t *testing.T, dir string) indexed {
	t.Helper()
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(all); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3" {
		t.Fatalf("the layout holds %+v", manifest.Manifests)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(inner.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return indexed{manifest.Manifests[0].Digest.String(), image}
}

func unpack(t *testing.T, image v1.Image) map[string][]byte {
	t.Helper()
	stream := mutate.Extract(image)
	defer func() { _ = stream.Close() }()
	files := map[string][]byte{}
	for r := tar.NewReader(stream); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Mode&0o022 != 0 && strings.TrimSuffix(h.Name, "/") != "tmp" {
			t.Errorf("%s belongs to %d with mode %o", h.Name, h.Uid, h.Mode)
		}
		var b bytes.Buffer
		if _, err := io.Copy(&b, r); err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(h.Name, "/")] = b.Bytes()
	}
}

func isStatic(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary needs a dynamic loader")
		}
	}
}

func TestDockerfilesMakeTheSameImages(t *testing.T) {
	for _, p := range programs {
		path := filepath.Join(root, p.Package, "Dockerfile")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range []string{
			"CGO_ENABLED=0", p.Package + "\n", "FROM scratch\n", "USER 65532:65532\n", `ENTRYPOINT ["/` + p.Name + `"]`,
			`org.opencontainers.image.title="` + p.Image() + `"`, `org.opencontainers.image.description="` + p.Description + `"`, "/" + caPath,
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s lacks %q", path, want)
			}
		}
	}
}

func TestAnUnknownProgramIsRefused(t *testing.T) {
	if err := run([]string{"-ca", "none", "trainer"}); err == nil || !strings.Contains(err.Error(), "there are coordinator") {
		t.Errorf("got %v", err)
	}
}
