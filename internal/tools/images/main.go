// Command images builds the programs' container images as OCI layouts, without a
// container engine: static binaries on an empty base, for several architectures.
//
// The same sources, Go version and CA certificates give the same digests.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// bundles where Linux distributions keep their authorities.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("images", flag.ContinueOnError)
	root := f.String("root", "../../..", "`folder` of the repository")
	out := f.String("out", "../../../bin/images", "`folder` for one OCI layout each")
	arches := f.String("arch", "amd64,arm64", "`architectures`, by commas")
	version := f.String("version", "0.1.0", "`version` for tag and label")
	ca := f.String("ca", "", "PEM `file` of CA certificates (default: this machine's), or \"none\"")
	if err := f.Parse(args); err != nil {
		return err
	}
	wanted := programs
	if f.NArg() > 0 {
		wanted = nil
		for _, name := range f.Args() {
			i := slices.IndexFunc(programs, func(p Program) bool { return p.Name == name })
			if i < 0 {
				return fmt.Errorf("no program %q; there are coordinator, agent, operator and girassol", name)
			}
			wanted = append(wanted, programs[i])
		}
	}
	created, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	authorities, from, err := readAuthorities(*ca)
	if err != nil {
		return err
	}
	fmt.Println("CA certificates:", from)
	for _, p := range wanted {
		index, err := build(*root, strings.Split(*arches, ","), Contents{Program: p, Version: *version, Authorities: authorities, Created: created})
		if err != nil {
			return err
		}
		dir := filepath.Join(*out, p.Image())
		digest, err := write(dir, *version, index)
		if err != nil {
			return err
		}
		fmt.Printf("%s:%s %s in %s\n", p.Image(), *version, digest, dir)
	}
	return nil
}

func sourceDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds", epoch)
	}
	return time.Unix(seconds, 0), nil
}

func readAuthorities(path string) (pem []byte, from string, err error) {
	if path == noAuthorities {
		return nil, "none, as asked", nil
	}
	if path != "" {
		pem, err = os.ReadFile(path)
		return pem, path, err
	}
	for _, path := range bundles {
		if pem, err = os.ReadFile(path); err == nil {
			return pem, path, nil
		}
	}
	return nil, "none on this machine: the images trust no TLS server of a public authority; install ca-certificates or give -ca", nil
}

// build compiles a program for each architecture and puts it into an index.
func build(root string, arches []string, c Contents) (v1.ImageIndex, error) {
	dir, err := os.MkdirTemp("", "images-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binaries := map[string][]byte{}
	for _, arch := range arches {
		path := filepath.Join(dir, arch)
		// No path, no commit and no build id of this machine stays in the binary.
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", path, c.Program.Package)
		cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stderr, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK=off")
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("go build %s for %s: %w", c.Program.Package, arch, err)
		}
		if binaries[arch], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return Index(c, binaries)
}

// write replaces a layout with one index in it.
func write(dir, tag string, index v1.ImageIndex) (v1.Hash, error) {
	digest, err := index.Digest()
	if err != nil {
		return digest, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return digest, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return digest, err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, err
	}
	return digest, path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
}
