package algorithm

// Plan is what a federation asks for over its whole run.
type Plan struct {
	// Parameters of the strategy, before the first entry of the schedule.
	Parameters
	// Schedule of densities, ascending.
	Schedule []Density
}

// Density is how much is sent from a version on.
type Density struct {
	FromVersion uint64
	// UplinkKeepOneIn and DownlinkKeepOneIn; 0: as in the plan's Parameters.
	UplinkKeepOneIn, DownlinkKeepOneIn int
}

// ForVersion is what holds for the commit that makes this version and for the
// updates that it merges.
func (p Plan) ForVersion(version uint64) Parameters {
	out := p.Parameters
	for _, d := range p.Schedule {
		if d.FromVersion > version {
			break
		}
		out = p.at(d)
	}
	return out
}

// Keeps says whether any commit of the plan can leave something for later.
func (p Plan) Keeps() bool {
	keeps := !p.Downlink.Lossless()
	for _, d := range p.Schedule {
		keeps = keeps || !p.at(d).Downlink.Lossless()
	}
	return keeps
}

func (p Plan) at(d Density) Parameters {
	out := p.Parameters
	if d.UplinkKeepOneIn != 0 {
		out.Uplink.KeepOneIn = d.UplinkKeepOneIn
	}
	if d.DownlinkKeepOneIn != 0 {
		out.Downlink.KeepOneIn = d.DownlinkKeepOneIn
	}
	return out
}
