package main

import (
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/wire"
)

// framing is what gRPC and HTTP/2 put before a message.
const framing = 5 + 9

// overhead is the messages that a site exchanges with the coordinator for one
// update of size bytes up and one delta down, without the payloads: grant, push
// header and answer, commit, pull request and header, and each chunk's offset and
// checksum. Fields have the sizes that the product gives them. Heartbeats and
// HTTP/2's headers are not in it: they depend on time.
func overhead(p algorithm.Parameters, members int, upBytes, downBytes int64) (up, down int64) {
	id := "0123456789abcdef0123456789abcdef"
	token, digest := id+id[:11], make([]byte, 32)
	x := 0.5
	const large = 1 << 40
	push := &coordinatorv1.PushHeader{
		SessionToken: token, Epoch: 1, Kind: coordinatorv1.PushHeader_KIND_UPDATE, Round: 100, BaseVersion: 100,
		UpdateId: id, PayloadBytes: uint64(upBytes), LayoutDigest: digest, Weight: x, Steps: 10, Samples: 1 << 14,
		Loss: &x, TrainingSeconds: x, EnergyJoules: x, EnergySource: "model", Agreement: &x,
	}
	grant := &coordinatorv1.Grant{
		Round: 100, Epoch: 1, BaseVersion: 100, BaseDigest: digest, StopAtUnixMs: large, StopInMs: 1 << 16,
		CollectInMs: 1 << 16, Algorithm: p.ToProto(), Agreement: &x, CommittedSamples: 1 << 24,
	}
	pulled := &coordinatorv1.PullHeader{Version: 100, PayloadBytes: uint64(downBytes), Digest: digest, Round: 100, Algorithm: p.ToProto()}
	for range members {
		pulled.UpdateIds = append(pulled.UpdateIds, id)
	}
	up = sizes(&coordinatorv1.PushRequest{Header: push},
		&coordinatorv1.PullRequest{SessionToken: token, Kind: coordinatorv1.PullRequest_KIND_DELTA, Version: 100}) + chunks(upBytes)
	down = sizes(grant, &coordinatorv1.PushResponse{}, &coordinatorv1.Committed{Round: 100, Version: 100, Digest: digest},
		&coordinatorv1.PullResponse{Header: pulled}) + chunks(downBytes)
	return up, down
}

func sizes(messages ...proto.Message) (n int64) {
	for _, m := range messages {
		n += framing + int64(proto.Size(m))
	}
	return n
}

// chunks is what goes around a payload of n bytes: offset, checksum and length.
func chunks(n int64) int64 {
	return (n + wire.ChunkSize - 1) / wire.ChunkSize * (framing + 5 + 5 + 5)
}
