// Package client speaks the trainer API from the trainer's end: one method per
// call, and a Loop that works on tasks for ever.
//
// It must not know what a model is; that is the Handler's business.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

const (
	// callTimeout of everything but the wait of a long poll.
	callTimeout = 10 * time.Second
	maxAnswer   = 4 << 20
)

// Client calls the agent on its Unix socket. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// New makes a client; nothing is dialled yet.
func New(socket string) *Client {
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: 2, IdleConnTimeout: 2 * time.Minute, DisableCompression: true,
	}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is an answer of the agent that is no success.
type StatusError struct {
	Status  int // HTTP status
	Problem string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("trainer API: %d %s: %s", e.Status, http.StatusText(e.Status), e.Problem)
}

// Refused says whether err is the agent's answer with one of these statuses.
func Refused(err error, statuses ...int) bool {
	var e *StatusError
	if !errors.As(err, &e) {
		return false
	}
	for _, s := range statuses {
		if e.Status == s {
			return true
		}
	}
	return false
}

// NextTask asks for a task and waits up to wait (whole milliseconds, the agent
// caps it at a minute); nil without an error means there is none. The answer's
// StopAt is moved onto this process's monotonic clock, so that a step of the
// wall clock cannot stretch it.
func (c *Client) NextTask(ctx context.Context, wait time.Duration) (*trainerv1.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+callTimeout)
	defer cancel()
	var t trainerv1.Task
	got, err := c.call(ctx, http.MethodGet, "/v1/task?wait="+url.QueryEscape(wait.Truncate(time.Millisecond).String()), nil, &t)
	if err != nil || !got {
		return nil, err
	}
	stop := time.Now().Add(time.Duration(t.StopInSeconds * float64(time.Second)))
	if late := stop.Sub(t.StopAt); late > 0 {
		stop = stop.Add(-late)
	}
	t.StopAt = stop
	return &t, nil
}

// Progress reports and hears what to do next.
func (c *Client) Progress(ctx context.Context, id string, p trainerv1.Progress) (trainerv1.Directive, error) {
	var d trainerv1.Directive
	got, err := c.bounded(ctx, http.MethodPost, task(id, "progress"), p, &d)
	if err == nil && !got {
		err = errors.New("trainer API: the answer to a progress has no directive")
	}
	return d, err
}

// Result ends a task well.
func (c *Client) Result(ctx context.Context, id string, r trainerv1.Result) error {
	_, err := c.bounded(ctx, http.MethodPost, task(id, "result"), r, nil)
	return err
}

// Failure ends a task badly.
func (c *Client) Failure(ctx context.Context, id, reason string) error {
	_, err := c.bounded(ctx, http.MethodPost, task(id, "failure"), trainerv1.Failure{Reason: reason}, nil)
	return err
}

// Seed offers first weights, a safetensors file in the work folder. Refused
// with http.StatusConflict when none are wanted, or none any more.
func (c *Client) Seed(ctx context.Context, path string) error {
	_, err := c.bounded(ctx, http.MethodPut, "/v1/model", trainerv1.Seed{Path: path}, nil)
	return err
}

func task(id, what string) string { return "/v1/tasks/" + url.PathEscape(id) + "/" + what }

func (c *Client) bounded(ctx context.Context, method, path string, body, into any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.call(ctx, method, path, body, into)
}

// call says whether the answer had a body, which is then in into.
func (c *Client) call(ctx context.Context, method, path string, body, into any) (bool, error) {
	var send io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return false, fmt.Errorf("trainer API: %s %s: %w", method, path, err)
		}
		send = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, send)
	if err != nil {
		return false, fmt.Errorf("trainer API: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return false, fmt.Errorf("trainer API on %s: %w", c.socket, err)
	}
	defer func() {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // so that the connection can be used again
		_ = res.Body.Close()
	}()
	answer := json.NewDecoder(io.LimitReader(res.Body, maxAnswer))
	switch {
	case res.StatusCode == http.StatusNoContent:
		return false, nil
	case res.StatusCode != http.StatusOK:
		var p trainerv1.Problem
		if err := answer.Decode(&p); err != nil {
			p.Error = "(no problem body)"
		}
		return false, &StatusError{Status: res.StatusCode, Problem: p.Error}
	case into == nil:
		return false, fmt.Errorf("trainer API: %s %s: a body where none belongs", method, path)
	}
	if err := answer.Decode(into); err != nil {
		return false, fmt.Errorf("trainer API: %s %s: %w", method, path, err)
	}
	return true, nil
}
