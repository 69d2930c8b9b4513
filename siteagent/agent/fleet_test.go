package agent

import (
	"bytes"
	"errors"
	"fmt"
	"google.golang.org/protobuf/proto"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

// Session implements the Fleet service.
func (c *coordinator) Session(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	m := &member{hello: first.GetHello(), out: make(chan *coordinatorv1.SessionResponse, 64), end: make(chan error, 1)}
	var refuse error
	w := &coordinatorv1.Welcome{HeartbeatIntervalMs: 20, LossAfterMs: c.loss.Milliseconds()}
	c.do(func() {
		if refuse = c.refuse; refuse != nil {
			return
		}
		c.epoch++
		m.epoch = c.epoch
		w.EventsPublicKey = c.eventsKey
		w.Epoch, w.SessionToken, w.ServerUnixMs = m.epoch, fmt.Sprint("token-", m.epoch), time.Now().Add(c.skew).UnixMilli()
		if c.hasModel {
			v := c.version
			w.ModelVersion, w.ModelDigest = &v, bytes.Clone(c.digest[:])
		}
	})
	if refuse != nil {
		return refuse
	}
	if err := stream.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Welcome{Welcome: w}}); err != nil {
		return err
	}
	c.do(func() { c.members = append(c.members, m) })
	broken := make(chan error, 1)
	go func() {
		for {
			in, err := stream.Recv()
			if err != nil {
				broken <- err
				return
			}
			c.do(func() {
				if h := in.GetHeartbeat(); h != nil {
					m.beats = append(m.beats, h)
					if !c.mute {
						m.out <- &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_HeartbeatReply{HeartbeatReply: &coordinatorv1.HeartbeatReply{
							Sequence: h.GetSequence(), ServerUnixMs: time.Now().Add(c.skew).UnixMilli(),
						}}}
					}
				}
				if l := in.GetLeave(); l != nil {
					m.leaves = append(m.leaves, l)
				}
				if r := in.GetLinkTestResult(); r != nil {
					m.tests = append(m.tests, r)
				}
			})
		}
	}()
	for {
		select {
		case r := <-m.out:
			if err := stream.Send(r); err != nil {
				return err
			}
		case err := <-m.end:
			return err
		case err := <-broken:
			return err
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (c *coordinator) tokenOK(token string) bool {
	return token == fmt.Sprint("token-", c.epoch)
}

// Pull implements the Fleet service.
func (c *coordinator) Pull(req *coordinatorv1.PullRequest, stream grpc.ServerStreamingServer[coordinatorv1.PullResponse]) error {
	var b blob
	var broken, known, dead, snapshot bool
	c.do(func() {
		if dead = !c.tokenOK(req.GetSessionToken()); dead {
			return
		}
		c.pulls = append(c.pulls, req)
		b, known = c.snapshot, true
		if req.GetKind() == coordinatorv1.PullRequest_KIND_DELTA {
			b, known = c.deltas[req.GetVersion()]
			if req.GetCatchUpTo() > 0 && c.shorter {
				b, known = c.snapshot, true
				snapshot = true
			}
		}
		if c.breakPull > 0 {
			c.breakPull--
			broken = true
		}
	})
	if dead {
		return status.Error(codes.Unauthenticated, "no such session")
	}
	if !known {
		return status.Error(codes.NotFound, "pruned")
	}
	h := proto.Clone(b.manifest).(*coordinatorv1.PullHeader)
	h.PayloadBytes, h.Snapshot = uint64(len(b.data)), snapshot
	err := stream.Send(&coordinatorv1.PullResponse{Header: h})
	if err != nil {
		return err
	}
	return wire.SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		if broken && offset > req.GetOffset() {
			return status.Error(codes.Unavailable, "the line is cut")
		}
		return stream.Send(&coordinatorv1.PullResponse{Offset: offset, Crc32C: crc, Payload: payload})
	}, bytes.NewReader(b.data), int64(len(b.data)), int64(req.GetOffset()))
}

// Push implements the Fleet service.
func (c *coordinator) Push(stream grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	reply := func(r *coordinatorv1.PushResult) error {
		return stream.Send(&coordinatorv1.PushResponse{Message: &coordinatorv1.PushResponse_Result{Result: r}})
	}
	var down, broken, known bool
	var fenced *coordinatorv1.PushResult
	var from int
	c.do(func() {
		down = c.pushDown
		if !c.tokenOK(h.GetSessionToken()) || h.GetEpoch() != c.epoch {
			fenced = &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: "FencedEpoch"}
		}
		known = c.accepted[h.GetUpdateId()]
		from = len(c.partial[h.GetUpdateId()])
		if c.breakPush > 0 {
			c.breakPush--
			broken = true
		}
	})
	switch {
	case down:
		return status.Error(codes.Unavailable, "no pushes today")
	case fenced != nil:
		return reply(fenced)
	case known:
		return reply(&coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_ACCEPTED})
	}
	err = stream.Send(&coordinatorv1.PushResponse{Message: &coordinatorv1.PushResponse_Resume{Resume: &coordinatorv1.Resume{Offset: uint64(from)}}})
	if err != nil {
		return err
	}
	var got bytes.Buffer
	rx := wire.NewReceiver(&got, int64(h.GetPayloadBytes()), int64(from))
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = rx.Take(m)
		}
		if err != nil {
			c.do(func() { c.partial[h.GetUpdateId()] = append(c.partial[h.GetUpdateId()], got.Bytes()...) })
			return err
		}
		if broken {
			c.do(func() { c.partial[h.GetUpdateId()] = append(c.partial[h.GetUpdateId()], got.Bytes()...) })
			return status.Error(codes.Unavailable, "the line is cut")
		}
	}
	if err := rx.Finish(); err != nil {
		return err
	}
	res := &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_ACCEPTED}
	c.do(func() {
		if c.answer != nil {
			res = c.answer(h)
		}
		c.accepted[h.GetUpdateId()] = res.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED
		c.pushes = append(c.pushes, push{h, append(c.partial[h.GetUpdateId()], got.Bytes()...), uint64(from)})
	})
	return reply(res)
}
