package algorithm

import (
	"testing"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// An agent takes its algorithm from the coordinator's messages: what is taken is
// valid, and says the same when it is told on.
func FuzzFromProto(f *testing.F) {
	for _, name := range []string{DiLoCo, DecoupledMomentum} {
		p, err := Defaults(name)
		if err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(p.ToProto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a coordinatorv1.Algorithm
		if proto.Unmarshal(b, &a) != nil {
			return
		}
		p, err := FromProto(&a)
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		again, err := FromProto(p.ToProto())
		if err != nil || !proto.Equal(again.ToProto(), p.ToProto()) {
			t.Fatalf("%+v, %v, want %+v", again, err, p)
		}
	})
}
