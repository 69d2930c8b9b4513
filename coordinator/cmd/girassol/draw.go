package main

import (
	"bytes"
	"io"
	"strings"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/statusview"
)

const (
	cursorHome  = "\x1b[H"
	eraseToLine = "\x1b[K" // to the end of the line
	eraseBelow  = "\x1b[J"
)

// draw puts the table over the one drawn before. It overwrites line by line in one
// write, which does not flicker as clearing the screen does. Lines that do not fit
// the height are left out.
func draw(w io.Writer, s *coordinatorv1.FederationStatus, width, height int, note string) error {
	var table bytes.Buffer
	statusview.Table(&table, s, width)
	lines := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	if note != "" {
		if runes := []rune(note); len(runes) > width {
			note = string(runes[:width-1]) + "…"
		}
		lines = append([]string{note, ""}, lines...)
	}
	// The last row stays free: a newline there would scroll.
	if most := max(1, height-1); len(lines) > most {
		lines = append(lines[:most-1], "…")
	}
	var out bytes.Buffer
	out.WriteString(cursorHome)
	for _, line := range lines {
		out.WriteString(line + eraseToLine + "\n")
	}
	out.WriteString(eraseBelow)
	_, err := w.Write(out.Bytes())
	return err
}
