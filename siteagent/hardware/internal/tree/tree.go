// Package tree reads small files of the kernel below a root, so that a test can
// put another machine there.
//
// It must not know what the files mean.
package tree

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"girassol.dev/siteagent/hardware/machine"
)

// most bytes of a file that are read; kernel files are a page or a few.
const most = 1 << 20

// Tree is a machine's files. Names have no leading slash.
type Tree struct {
	fs.FS
	// Allowed says whether the process may read and write a file that exists,
	// without opening it: opening a GPU's node may wake the GPU.
	Allowed func(name string) bool
	// Log is the kernel's log as far as it can be read; may be nil.
	Log func() string
}

// Text of a file without surrounding space.
func (t Tree) Text(elem ...string) (string, error) {
	f, err := t.Open(path.Join(elem...))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "")), nil
}

// String is Text, empty when it cannot be read.
func (t Tree) String(elem ...string) string {
	s, err := t.Text(elem...)
	if err != nil {
		return ""
	}
	return s
}

// Uint reads a number, decimal or with 0x; false when there is none.
func (t Tree) Uint(elem ...string) (uint64, bool) {
	n, err := strconv.ParseUint(t.String(elem...), 0, 64)
	return n, err == nil
}

// Scaled reads an integer and divides it; nil when there is none.
func (t Tree) Scaled(by float64, elem ...string) *float64 {
	n, err := strconv.ParseInt(t.String(elem...), 10, 64)
	if err != nil {
		return nil
	}
	v := float64(n) / by
	return &v
}

// Exists says whether there is a file or folder, readable or not.
func (t Tree) Exists(elem ...string) bool {
	_, err := fs.Stat(t.FS, path.Join(elem...))
	return err == nil || errors.Is(err, fs.ErrPermission)
}

// List names a folder's entries in order, nothing when it cannot be read.
func (t Tree) List(elem ...string) []string {
	entries, err := fs.ReadDir(t.FS, path.Join(elem...))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Node looks at a device node, without opening it.
func (t Tree) Node(name string) machine.Node {
	n := machine.Node{Path: "/" + name, Access: machine.Allowed}
	switch {
	case !t.Exists(name):
		n.Access = machine.Missing
	case t.Allowed != nil && !t.Allowed(name):
		n.Access = machine.Denied
	}
	return n
}

// Pairs reads lines of a key, a separator and a value. The first value of a key
// counts.
func Pairs(text, separator string) map[string]string {
	pairs := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), separator)
		key = strings.TrimSpace(key)
		if _, twice := pairs[key]; ok && key != "" && !twice {
			pairs[key] = strings.TrimSpace(value)
		}
	}
	return pairs
}
