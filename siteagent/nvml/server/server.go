// Package server answers agent-nvml's requests from NVML, and owns when the
// library is open and which power limits are to be put back.
//
// It must not know how the library is bound: it needs no cgo, and its tests use a
// library made up. All calls to the library come from one goroutine.
package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"girassol.dev/siteagent/nvml"
)

// linger is how long the library stays open after a request, if the GPUs are kept
// awake by others: some requests come in a row.
const linger = 250 * time.Millisecond

// Server answers requests.
type Server struct {
	lib  Library
	open bool
	// originals are limits by UUID, to be put back.
	originals map[string]nvml.Limit
	// identities of GPUs by index, for those that are lost later.
	identities map[int]identity
}

type identity struct{ uuid, address, model string }

// New returns a server of a library, which is opened with the first request.
func New(lib Library) *Server {
	return &Server{lib: lib, originals: make(map[string]nvml.Limit), identities: make(map[int]identity)}
}

// Serve answers until the input ends; then it puts limits back and closes the
// library.
func (s *Server) Serve(in io.Reader, out io.Writer) error {
	requests := make(chan nvml.Request)
	quit, ended := make(chan struct{}), make(chan error, 1)
	defer close(quit)
	go func() { ended <- read(in, requests, quit) }()
	release := time.NewTimer(linger)
	defer release.Stop()
	release.Stop()
	for {
		select {
		case r := <-requests:
			release.Stop()
			if err := write(out, s.answer(r)); err != nil {
				return errors.Join(err, s.end())
			}
			if s.open && s.awakeElsewhere() {
				release.Reset(linger)
			}
		case <-release.C:
			if err := s.close(); err != nil {
				return errors.Join(err, s.end())
			}
		case err := <-ended:
			return errors.Join(err, s.end())
		}
	}
}

// read requests until the input ends, which is no error.
func read(in io.Reader, requests chan<- nvml.Request, quit <-chan struct{}) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, nvml.MaxLine)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var r nvml.Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("not a request: %w", err)
		}
		select {
		case requests <- r:
		case <-quit:
			return nil
		}
	}
	return lines.Err()
}

func write(out io.Writer, a nvml.Answer) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}

// answer one request.
func (s *Server) answer(r nvml.Request) nvml.Answer {
	for uuid, limit := range r.Originals {
		if _, known := s.originals[uuid]; !known {
			s.originals[uuid] = limit
		}
	}
	a := nvml.Answer{ID: r.ID}
	if err := s.ensureOpen(); err != nil {
		a.Error, a.Unavailable = asError("loading the library", err), true
		return a
	}
	var err error
	switch r.Op {
	case nvml.OpInventory:
		a.Inventory, err = s.inventory()
	case nvml.OpSample:
		a.Samples, err = s.samples()
	case nvml.OpSetPowerLimit:
		a.BeforeWatts, err = s.setLimit(r.UUID, r.Watts, r.Keep)
	case nvml.OpRestorePowerLimits:
		err = s.restore(r.UUID)
	default:
		err = &nvml.Error{Code: nvml.NotSupported, Detail: fmt.Sprintf("no operation %q", r.Op)}
	}
	if err != nil {
		a.Error = asError(string(r.Op), err)
		a.Unavailable = whole(a.Error.Code)
	}
	return a
}

// whole says that a failure is of the library and not of one GPU: only loading it
// anew may help.
func whole(c nvml.Code) bool {
	return c == nvml.NoLibrary || c == nvml.NoDriver || c == nvml.Mismatch
}

func (s *Server) ensureOpen() error {
	if s.open {
		return nil
	}
	if err := s.lib.Open(); err != nil {
		return err
	}
	s.open = true
	return nil
}

func (s *Server) close() error {
	if !s.open {
		return nil
	}
	s.open = false
	return s.lib.Close()
}

func (s *Server) end() error {
	var err error
	if len(s.originals) > 0 {
		if err = s.ensureOpen(); err == nil {
			err = s.restore("")
		}
	}
	return errors.Join(err, s.close())
}

// awakeElsewhere says that the driver keeps the state of all GPUs when this
// process lets go of them.
func (s *Server) awakeElsewhere() bool {
	n, err := s.lib.Count()
	if err != nil {
		return true // nothing is held that could be lost
	}
	for i := range n {
		d, err := s.lib.Device(i)
		if err != nil {
			continue
		}
		if on, err := d.Persistence(); err == nil && on {
			continue
		}
		if n, err := d.Processes(); err != nil || n == 0 {
			return false
		}
	}
	return true
}

// asError keeps the kind and says what was done.
func asError(doing string, err error) *nvml.Error {
	var e *nvml.Error
	if errors.As(err, &e) {
		return &nvml.Error{Code: e.Code, Detail: doing + ": " + e.Detail}
	}
	return &nvml.Error{Code: nvml.Failed, Detail: doing + ": " + err.Error()}
}
