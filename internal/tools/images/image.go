package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user and group that run the binary; not root, and without a shell.
const user = 65532

// caPath is where Go looks for authorities on any Linux.
const caPath = "etc/ssl/certs/ca-certificates.crt"

// noAuthorities is the label's value of an image without CA certificates.
const noAuthorities = "none"

// Contents of an image. The same contents give the same digest.
type Contents struct {
	Program Program
	// Version goes into a label.
	Version string
	// Authorities is a PEM bundle; without one the program trusts no TLS server
	// but by its own flags.
	Authorities []byte
	// Created is the date of image and files; the zero time is 1970.
	Created time.Time
}

// file in a layer; a folder if Data is nil.
type file struct {
	path string
	mode int64
	data []byte
}

// Index has one image for each architecture's binary.
func Index(c Contents, binaries map[string][]byte) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	base, err := layer(c, baseFiles(c.Authorities))
	if err != nil {
		return nil, err
	}
	for _, arch := range sorted(binaries) {
		image, err := c.image(arch, base, binaries[arch])
		if err != nil {
			return nil, fmt.Errorf("image of %s for %s: %w", c.Program.Name, arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

func (c Contents) image(arch string, base v1.Layer, binary []byte) (v1.Image, error) {
	own, err := layer(c, []file{{c.Program.Name, 0o755, binary}})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, add := range []struct {
		layer v1.Layer
		what  string
	}{{base, "user, authorities, /tmp"}, {own, "the static binary"}} {
		if image, err = mutate.Append(image, mutate.Addendum{
			Layer: add.layer, History: v1.History{Created: v1.Time{Time: c.date()}, CreatedBy: "girassol images", Comment: add.what},
		}); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: c.date()}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/" + c.Program.Name},
		WorkingDir: "/",
		Env:        []string{"PATH=/", "HOME=/tmp"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       c.Program.Image(),
			"org.opencontainers.image.description": c.Program.Description,
			"org.opencontainers.image.version":     c.Version,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"dev.girassol.ca-certificates":         authorities(c.Authorities),
		},
	}
	return mutate.ConfigFile(image, config)
}

func (c Contents) date() time.Time {
	if c.Created.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return c.Created.UTC()
}

// authorities says which bundle it is, so that two images can be told apart.
func authorities(pem []byte) string {
	if len(pem) == 0 {
		return noAuthorities
	}
	sum := sha256.Sum256(pem)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func baseFiles(pem []byte) []file {
	files := []file{
		{path: "etc", mode: 0o755},
		{"etc/passwd", 0o644, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\ngirassol:x:%d:%d:girassol:/tmp:/sbin/nologin\n", user, user)},
		{"etc/group", 0o644, fmt.Appendf(nil, "root:x:0:\ngirassol:x:%d:\n", user)},
		{path: "tmp", mode: 0o1777},
	}
	if len(pem) > 0 {
		files = append(files, file{path: "etc/ssl", mode: 0o755}, file{path: "etc/ssl/certs", mode: 0o755}, file{caPath, 0o644, pem})
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return files
}

// layer is a tar whose bytes follow from the files alone.
func layer(c Contents, files []file) (v1.Layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.data)), ModTime: c.date(), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if f.data == nil {
			header.Typeflag, header.Name = tar.TypeDir, f.path+"/"
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

func sorted(m map[string][]byte) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
