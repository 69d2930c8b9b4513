// Package corpus shares a folder of text out among sites: whole files, each to
// one site or to the held-out set, never to both.
//
// It owns what counts as text and who gets which file. It must not know what is
// trained on it or where lists are kept.
package corpus

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Options say what to share out.
type Options struct {
	// Dir is the folder. GoSource takes it for a Go source tree: packages stay
	// together, tests, generated files and tables are left out.
	Dir      string
	GoSource bool
	// Sites to share among; 0 takes a site per sub-folder.
	Sites int
	Seed  uint64
	// SiteBytes and HeldOutBytes are at most so much, 0 for the defaults of
	// 6 MiB and 256 KiB.
	SiteBytes, HeldOutBytes int64
}

// The caps by default, the largest file that is read, and the least that makes
// sense to train on and to judge with.
const (
	DefaultSiteBytes    = 6 << 20
	DefaultHeldOutBytes = 256 << 10
	maxFile             = 1 << 20
	maxGoFile           = 128 << 10
	maxFiles            = 200_000
	leastSite           = 8 << 10
	leastHeldOut        = 4 << 10
	mostSites           = 16
)

// Share is one site's text.
type Share struct {
	// Name is set when the site is a sub-folder.
	Name string
	// Files are absolute paths.
	Files []string
	Bytes int64
	// Topics are the packages or folders with most bytes, largest first.
	Topics []string
}

// Split is a whole corpus.
type Split struct {
	Sites   []Share
	HeldOut Share
}

type file struct {
	path  string // absolute
	group string // files of a group stay together
	size  int64
	key   uint64 // order by seed
}

// Make walks the folder and shares it out. The same folder, options and seed
// give the same split on every machine.
func Make(o Options) (Split, error) {
	if o.SiteBytes == 0 {
		o.SiteBytes = DefaultSiteBytes
	}
	if o.HeldOutBytes == 0 {
		o.HeldOutBytes = DefaultHeldOutBytes
	}
	files, err := walk(o)
	if err != nil {
		return Split{}, err
	}
	bySub := false
	if !o.GoSource {
		folders := subFolders(files)
		switch {
		case o.Sites == 0 && len(folders) >= 2 && len(folders) <= mostSites, o.Sites > 1 && o.Sites == len(folders):
			bySub, o.Sites = true, len(folders)
		case o.Sites == 0:
			o.Sites = 3
		}
	}
	heldOut, rest := holdOut(files, o)
	s := Split{HeldOut: share("", heldOut)}
	if bySub {
		for _, name := range subFolders(rest) {
			own := slices.DeleteFunc(slices.Clone(rest), func(f file) bool { return f.group != name })
			s.Sites = append(s.Sites, share(name, capped(own, o.SiteBytes)))
		}
	} else {
		for _, own := range even(rest, o) {
			s.Sites = append(s.Sites, share("", own))
		}
	}
	return s, s.check(o)
}

func (s Split) check(o Options) error {
	if len(s.Sites) != o.Sites {
		return fmt.Errorf("corpus: %s has text for %d of %d sites", o.Dir, len(s.Sites), o.Sites)
	}
	for i, site := range s.Sites {
		if site.Bytes < leastSite {
			name := site.Name
			if name == "" {
				name = fmt.Sprint(i + 1)
			}
			return fmt.Errorf("corpus: %s leaves site %s with %d bytes of text, at least %d are needed; take a larger folder or fewer sites", o.Dir, name, site.Bytes, leastSite)
		}
	}
	if s.HeldOut.Bytes < leastHeldOut {
		return fmt.Errorf("corpus: %s leaves %d bytes of text to hold out, at least %d are needed; take a folder with more files", o.Dir, s.HeldOut.Bytes, leastHeldOut)
	}
	return nil
}

// goSkip are folders of a Go source tree that hold no code as people write it.
var goSkip = map[string]bool{"vendor": true, "testdata": true, "node_modules": true}

// goTables match files that are tables or generated, by name.
var goTables = regexp.MustCompile(`(_test|_string|_gen|tables)\.go$|^(z|rewrite|opGen)`)

func walk(o Options) ([]file, error) {
	root, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	var files []file
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p != root && errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		if p != root && strings.HasPrefix(d.Name(), ".") || o.GoSource && d.IsDir() && goSkip[d.Name()] {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || o.GoSource && (filepath.Ext(p) != ".go" || goTables.MatchString(d.Name())) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		limit := int64(maxFile)
		if o.GoSource {
			limit = maxGoFile
		}
		if info.Size() == 0 || info.Size() > limit {
			return nil
		}
		if len(files) == maxFiles {
			return fmt.Errorf("more than %d files", maxFiles)
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files = append(files, file{path: p, group: groupOf(rel, o.GoSource), size: info.Size(), key: keyed(o.Seed, rel)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("corpus: %s holds no text files", o.Dir)
	}
	slices.SortFunc(files, byKey)
	return files, nil
}

// groupOf is what stays together: a package tree of Go, or a sub-folder.
func groupOf(rel string, goSource bool) string {
	dir := path.Dir(rel)
	parts := strings.Split(dir, "/")
	switch {
	case !goSource:
		return strings.TrimSuffix(parts[0], ".")
	case len(parts) > 2 && parts[0] == "cmd":
		return strings.Join(parts[:3], "/")
	case len(parts) > 1:
		return strings.Join(parts[:2], "/")
	}
	return dir
}

func keyed(seed uint64, name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", seed, name)
	x := h.Sum64()
	x ^= x >> 33 // FNV's low bits alone order similar names alike
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

func byKey(a, b file) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.path, b.path))
}

// subFolders names the groups, sorted; files beside them have none.
func subFolders(files []file) []string {
	var out []string
	for _, f := range files {
		if f.group != "" && !slices.Contains(out, f.group) {
			out = append(out, f.group)
		}
	}
	slices.Sort(out)
	return out
}

// holdOut takes files from all over the corpus by the seed's order: at most a
// twentieth of all bytes, and of each file no more than an eighth of the cap, so
// that no single one decides. The small ones that this leaves out in a small
// corpus come last.
func holdOut(files []file, o Options) (heldOut, rest []file) {
	var total int64
	for _, f := range files {
		total += f.size
	}
	most := min(o.HeldOutBytes, max(total/20, leastHeldOut))
	largest := max(most/8, leastHeldOut)
	var sum int64
	taken := map[string]bool{}
	for _, limit := range []int64{largest, most * 2} {
		for _, f := range files {
			if sum < most && sum+f.size <= most+largest && f.size <= limit && !taken[f.path] && isText(f.path) {
				taken[f.path] = true
				heldOut = append(heldOut, f)
				sum += f.size
			}
		}
		if sum >= leastHeldOut {
			break
		}
	}
	for _, f := range files {
		if !taken[f.path] {
			rest = append(rest, f)
		}
	}
	return heldOut, rest
}

// even gives each group, by the seed's order, to the site with least text; a
// corpus of few groups is shared out file by file.
func even(files []file, o Options) [][]file {
	key := func(f file) string { return f.group }
	if len(subFolders(files)) < 4*o.Sites {
		key = func(f file) string { return f.path }
	}
	groups := map[string][]file{}
	var names []string
	for _, f := range files {
		k := key(f)
		if groups[k] == nil {
			names = append(names, k)
		}
		groups[k] = append(groups[k], f)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(keyed(o.Seed, path.Base(a)), keyed(o.Seed, path.Base(b))), cmp.Compare(a, b))
	})
	out := make([][]file, o.Sites)
	sums := make([]int64, o.Sites)
	for _, name := range names {
		least := 0
		for i := range sums {
			if sums[i] < sums[least] {
				least = i
			}
		}
		if sums[least] >= o.SiteBytes {
			break
		}
		for _, f := range capped(groups[name], o.SiteBytes/3) {
			if sums[least]+f.size <= o.SiteBytes {
				out[least] = append(out[least], f)
				sums[least] += f.size
			}
		}
	}
	return out
}

// capped takes text files in order up to so many bytes.
func capped(files []file, most int64) []file {
	var out []file
	var sum int64
	for _, f := range files {
		if sum+f.size <= most && isText(f.path) {
			out = append(out, f)
			sum += f.size
		}
	}
	return out
}

// isText looks at a file's beginning: UTF-8 without NUL.
func isText(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 8<<10)
	n, err := f.Read(b)
	if err != nil || n == 0 {
		return false
	}
	b = b[:n]
	if bytes.IndexByte(b, 0) >= 0 {
		return false
	}
	if n == cap(b) { // the last rune may be cut
		for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.Valid(b); i++ {
			b = b[:len(b)-1]
		}
	}
	return utf8.Valid(b) && !generated(b)
}

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func generated(b []byte) bool { return generatedLine.Match(b) }

func share(name string, files []file) Share {
	s := Share{Name: name}
	bytesOf := map[string]int64{}
	for _, f := range files {
		s.Files = append(s.Files, f.path)
		s.Bytes += f.size
		bytesOf[f.group] += f.size
		if !slices.Contains(s.Topics, f.group) && f.group != "" {
			s.Topics = append(s.Topics, f.group)
		}
	}
	slices.Sort(s.Files)
	slices.SortFunc(s.Topics, func(a, b string) int { return cmp.Or(cmp.Compare(bytesOf[b], bytesOf[a]), cmp.Compare(a, b)) })
	s.Topics = s.Topics[:min(len(s.Topics), 5)]
	return s
}
