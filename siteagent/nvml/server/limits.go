package server

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"girassol.dev/siteagent/nvml"
)

// setLimit sets a GPU's power limit and returns the one before. It is put back at
// the end unless the new one is to be kept.
func (s *Server) setLimit(uuid string, watts float64, keep bool) (*float64, error) {
	d, err := s.lib.DeviceByUUID(uuid)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", uuid, err)
	}
	before, err := d.LimitMilliwatts()
	if err != nil {
		return nil, err
	}
	least, most, err := d.LimitRangeMilliwatts()
	if err != nil {
		return nil, err
	}
	milliwatts := math.Round(watts * 1000)
	if !(milliwatts >= float64(least) && milliwatts <= float64(most)) {
		return nil, &nvml.Error{Code: nvml.OutOfRange, Detail: fmt.Sprintf("GPU %s takes limits of %g to %g W, not %g W", uuid, watt(least), watt(most), watts)}
	}
	if err := d.SetLimitMilliwatts(uint32(milliwatts)); err != nil {
		return nil, err
	}
	w := watt(before)
	if keep {
		delete(s.originals, uuid)
	} else {
		s.originals[uuid] = s.originals[uuid].Change(w, watts)
	}
	return &w, nil
}

// restore the limit of one GPU, or all of them, as they were before the first was
// set. What fails stays to be put back; what somebody else has set since is theirs.
func (s *Server) restore(uuid string) error {
	var all error
	for _, id := range slices.Sorted(maps.Keys(s.originals)) {
		if uuid != "" && id != uuid {
			continue
		}
		if err := s.putBack(id, s.originals[id]); err != nil {
			all = errors.Join(all, asError(fmt.Sprintf("putting the limit of GPU %s back to %g W", id, s.originals[id].Before), err))
			continue
		}
		delete(s.originals, id)
	}
	return all
}

func (s *Server) putBack(uuid string, was nvml.Limit) error {
	d, err := s.lib.DeviceByUUID(uuid)
	if err != nil {
		return err
	}
	now, err := d.LimitMilliwatts()
	if err != nil || !was.InForce(watt(now)) {
		return err
	}
	return d.SetLimitMilliwatts(uint32(math.Round(was.Before * 1000)))
}

func watt(milliwatts uint32) float64 { return float64(milliwatts) / 1000 }
