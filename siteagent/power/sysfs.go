package power

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// longestFile is more than any of sysfs' attributes has.
const longestFile = 64 << 10

// readFile gives at most longestFile bytes.
func readFile(root fs.FS, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, longestFile))
}

// readText is an attribute of one line.
func readText(root fs.FS, name string) (string, error) {
	b, err := readFile(root, name)
	return string(bytes.TrimSpace(b)), err
}

// readNumber is an attribute that is a whole number.
func readNumber(root fs.FS, name string) (uint64, error) {
	b, err := readFile(root, name)
	if err != nil {
		return 0, err
	}
	v, err := parseNumber(b)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func parseNumber(b []byte) (uint64, error) {
	text := string(bytes.TrimSpace(b))
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is no whole number of at least 0", text)
	}
	return v, nil
}

// parseSlot finds the PCI address in a device's uevent; "" without one.
func parseSlot(b []byte) string {
	for line := range strings.Lines(string(b)) {
		if slot, ok := strings.CutPrefix(strings.TrimSpace(line), "PCI_SLOT_NAME="); ok && len(slot) <= 64 {
			return slot
		}
	}
	return ""
}
