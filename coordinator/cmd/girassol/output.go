package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// answer writes an RPC's answer: the message as JSON, or the text.
func (o *options) answer(w io.Writer, m proto.Message, text string) error {
	if o.json() {
		return writeJSON(w, m)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// writeJSON writes a message on one line, zeroes included and unknown values left
// out: missing is never zero.
func writeJSON(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	// protojson varies its spaces from build to build on purpose.
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

// terminal is the size of the terminal that w is, if it is one.
func terminal(w io.Writer) (width, height int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return 80, 24, true
	}
	return width, height, true
}
