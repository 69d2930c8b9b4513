package trainer

import (
	"bytes"
	"slices"
	"sync"
)

const (
	// maxLine in bytes; what is longer is cut into several.
	maxLine   = 4 << 10
	tailLines = 20
)

// lines cuts a stream of bytes into lines.
type lines struct {
	each func(string)
	part []byte
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		take, end := p, i >= 0
		if end {
			take = p[:i]
		}
		if room := maxLine - len(l.part); len(take) > room {
			l.part = append(l.part, take[:room]...)
			p = p[room:]
			l.flush()
			continue
		}
		l.part = append(l.part, take...)
		if !end {
			break
		}
		p = p[i+1:]
		l.flush()
	}
	return n, nil
}

// flush ends the line at hand; empty ones are dropped.
func (l *lines) flush() {
	if text := bytes.TrimRight(l.part, "\r"); len(text) > 0 {
		l.each(string(text))
	}
	l.part = l.part[:0]
}

// tail keeps the last lines.
type tail struct {
	mu   sync.Mutex
	last []string
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.last) == tailLines {
		t.last = slices.Delete(t.last, 0, 1)
	}
	t.last = append(t.last, line)
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.last)
}

func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = nil
}
