package agent

import (
	"reflect"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/algorithm"
)

func TestTheGrantsDataReachesTheTrainerAndWhatItUsedTheCoordinatorAlsoAfterARestart(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.pushDown = true
	p := &person{t: t, use: func(task trainerv1.Task) []trainerv1.DataRange { return task.Data[1:] }}
	r := launch(t, c, "", p)
	c.waitReady(0)
	g := c.grant(7, 2, long)
	g.Data = []*coordinatorv1.DataRange{{Begin: 5, End: 9}, {Begin: 0, End: 3, Pass: 1}}
	c.tell(g)
	c.waitBeat("uploading", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_UPLOADING
	})
	r.stop()
	if got, want := p.taken()[0].Data, []trainerv1.DataRange{{Begin: 5, End: 9}, {Begin: 0, End: 3, Pass: 1}}; !reflect.DeepEqual(got, want) {
		t.Fatalf("the task has %v, the grant %v", got, want)
	}
	launch(t, c, r.dir, p)
	c.do(func() { c.pushDown = false })
	if used := c.waitPushes(1)[0].header.GetConsumed(); len(used) != 1 || used[0].GetPass() != 1 || used[0].GetBegin() != 0 || used[0].GetEnd() != 3 {
		t.Fatalf("consumed %v", used)
	}
}

func TestWithoutDataAnUpdateConsumesNone(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t}
	launch(t, c, "", p)
	c.waitReady(0)
	c.tell(c.grant(1, 1, long))
	if h := c.waitPushes(1)[0].header; h.Consumed != nil || p.taken()[0].Data != nil {
		t.Fatalf("%v", h)
	}
}
