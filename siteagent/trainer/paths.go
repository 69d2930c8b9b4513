package trainer

import (
	"fmt"
	"os"
	"path/filepath"
)

// inside resolves path, symlinks and all, and refuses it unless it is a
// regular file below root (itself absolute and resolved). Relative paths are
// relative to root.
func inside(root, path string) (string, error) {
	if path == "" {
		return "", fmt.Errorf("a path is needed")
	}
	abs := path
	if !filepath.IsAbs(abs) {
		abs = filepath.Join(root, path)
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("path %q: %w", path, err)
	}
	rel, err := filepath.Rel(root, resolved)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("path %q leads out of the work folder %s", path, root)
	}
	fi, err := os.Lstat(resolved)
	if err != nil {
		return "", fmt.Errorf("path %q: %w", path, err)
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("path %q is no regular file", path)
	}
	return resolved, nil
}
