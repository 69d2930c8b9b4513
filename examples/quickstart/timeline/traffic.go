package timeline

import coordinatorv1 "girassol.dev/api/coordinator/v1"

// moved is bytes in the two directions.
type moved struct{ up, down uint64 }

func (b moved) plus(o moved) moved { return moved{b.up + o.up, b.down + o.down} }

// counter sums a count that starts again with the coordinator's process.
type counter struct{ base, last uint64 }

func (c *counter) see(n uint64) {
	if n < c.last {
		c.base += c.last
	}
	c.last = n
}

func (c *counter) total() uint64 { return c.base + c.last }

// traffic sums the members' bytes. A member that is not connected is missing
// from a status; what it has sent stays.
type traffic struct {
	before  map[string]moved // by site, of earlier stretches
	members map[string][2]*counter
	of      map[string][]string // a site's members
}

func newTraffic() traffic {
	return traffic{before: map[string]moved{}, members: map[string][2]*counter{}, of: map[string][]string{}}
}

func (t *traffic) see(s *coordinatorv1.FederationStatus) {
	for _, site := range s.GetSites() {
		for _, m := range site.GetMembers() {
			key := site.GetName() + "/" + m.GetNode()
			if _, known := t.members[key]; !known {
				t.members[key] = [2]*counter{{}, {}}
				t.of[site.GetName()] = append(t.of[site.GetName()], key)
			}
			t.members[key][0].see(m.GetBytesUp())
			t.members[key][1].see(m.GetBytesDown())
		}
	}
}

func (t *traffic) site(name string) moved {
	b := t.before[name]
	for _, key := range t.of[name] {
		b = b.plus(moved{t.members[key][0].total(), t.members[key][1].total()})
	}
	return b
}

func (t *traffic) total() moved {
	var b moved
	for _, before := range t.before {
		b = b.plus(before)
	}
	for _, c := range t.members {
		b = b.plus(moved{c[0].total(), c[1].total()})
	}
	return b
}
