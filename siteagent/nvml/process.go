package nvml

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"girassol.dev/siteagent/environ"
)

// child is a running agent-nvml.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	// events are answers; an error is the last. There is room for the answer that is
	// owed and the end, so that a process that ends is reaped at once.
	events chan event
	quit   chan struct{}
	ending sync.Once
	done   chan struct{} // the process is gone
	stderr tail
}

// event is an answer, or why there is none: io.EOF where the output ended.
type event struct {
	answer Answer
	err    error
}

// spawn starts the program.
func spawn(path string, args []string) (*child, *Error) {
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{NoProgram, path + " is not there"}
		}
		return nil, &Error{NoProgram, err.Error()}
	}
	c := &child{cmd: exec.Command(path, args...), events: make(chan event, 2), quit: make(chan struct{}), done: make(chan struct{})}
	c.cmd.Stderr = &c.stderr
	c.cmd.Env = environ.ForChildren()
	c.cmd.SysProcAttr = apart()
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, &Error{NoProgram, err.Error()}
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, &Error{NoProgram, err.Error()}
	}
	c.in = in
	if err := c.cmd.Start(); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // the program is, so its interpreter is not
			return nil, &Error{NoProgram, path + " does not start: the dynamic linker that it needs is not there (no glibc, as on Alpine or in an empty image)"}
		}
		return nil, &Error{NoProgram, err.Error()}
	}
	go c.read(out)
	return c, nil
}

// read answers until the output ends, then reap the process.
func (c *child) read(out io.Reader) {
	defer close(c.done)
	defer func() { _ = c.cmd.Wait() }()
	defer func() { _, _ = io.Copy(io.Discard, out) }()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, MaxLine)
	for lines.Scan() {
		answer, err := ParseAnswer(lines.Bytes())
		if err != nil {
			err = &Error{Garbage, "agent-nvml: " + err.Error()}
		}
		if !c.tell(event{answer, err}) || err != nil {
			return
		}
	}
	err := lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		err = &Error{Garbage, fmt.Sprintf("agent-nvml: a line of more than %d bytes", MaxLine)}
	case err == nil:
		err = io.EOF
	}
	c.tell(event{err: err})
}

func (c *child) tell(e event) bool {
	select {
	case c.events <- e:
		return true
	case <-c.quit:
		return false
	}
}

// send a request. The pipe has room for it: at most one is not yet read.
func (c *child) send(r Request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return &Error{OutOfRange, "not a request: " + err.Error()}
	}
	_, err = c.in.Write(append(line, '\n'))
	return err
}

// why the child failed.
func (c *child) why(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	detail := "agent-nvml ended in the middle of a request"
	if c.gone(crashGrace) {
		detail += ": " + c.cmd.ProcessState.String()
	}
	if last := c.stderr.last(); last != "" {
		detail += ": " + last
	}
	return &Error{Crashed, detail}
}

// crashGrace is how long to wait for the exit status of a child that has closed
// its output.
const crashGrace = time.Second

// end asks the child to end by closing its input, and kills it after a grace.
func (c *child) end(grace time.Duration) {
	c.ending.Do(func() {
		close(c.quit)
		_ = c.in.Close()
		go func() {
			if !c.gone(grace) {
				c.kill()
			}
		}()
	})
}

func (c *child) kill()    { _ = c.cmd.Process.Kill() }
func (c *child) pid() int { return c.cmd.Process.Pid }

// gone waits a while for the process to be gone.
func (c *child) gone(wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-c.done:
		return true
	case <-t.C:
		return false
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// longestTail in bytes.
const longestTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(len(p)-longestTail, 0):]...)
	t.text = t.text[max(len(t.text)-longestTail, 0):]
	return len(p), nil
}

// last line that is not empty, shortened.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.text), ""))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	const most = 300
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
