package energycharts

import (
	"fmt"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// columns are the parallel arrays of an answer.
type columns struct {
	seconds                []*int64
	values                 []*float64
	substitute, deprecated bool
}

// series is an answer as readings, by time.
type series struct {
	readings   []signals.Reading
	substitute bool
}

func (s *Source) decodeSignal(body []byte) (columns, error) {
	var a struct {
		Seconds    []*int64   `json:"unix_seconds"`
		Share      []*float64 `json:"share"`
		Signal     []*float64 `json:"signal"`
		Substitute bool       `json:"substitute"`
		Deprecated bool       `json:"deprecated"`
	}
	if err := fetch.JSON(body, &a); err != nil {
		return columns{}, err
	}
	values := a.Share
	if s.kind == signals.TrafficLight {
		values = a.Signal
	}
	return columns{a.Seconds, values, a.Substitute, a.Deprecated}, nil
}

func decodeShare(body []byte) (columns, error) {
	var a struct {
		Seconds    []*int64   `json:"unix_seconds"`
		Share      []*float64 `json:"ren_share"`
		Substitute bool       `json:"substitute"`
		Deprecated bool       `json:"deprecated"`
	}
	if err := fetch.JSON(body, &a); err != nil {
		return columns{}, err
	}
	return columns{a.Seconds, a.Share, a.Substitute, a.Deprecated}, nil
}

// The years 1970 to 9998 in unix seconds.
const mostSeconds = 253370764800

// readings of the columns. A slot lasts as long as the shortest distance of two
// stamps, so that a slot that is missing is a gap and not a long slot.
func (s *Source) readings(c columns, received time.Time) (series, error) {
	if len(c.seconds) != len(c.values) {
		return series{}, fmt.Errorf("%d times and %d values", len(c.seconds), len(c.values))
	}
	q := signals.Good
	if c.substitute {
		q = signals.Estimated
	}
	var rs []signals.Reading
	for i, at := range c.seconds {
		if at == nil {
			continue
		}
		if *at < 0 || *at >= mostSeconds {
			return series{}, fmt.Errorf("%d is no time in unix seconds", *at)
		}
		r := signals.Reading{Kind: s.kind, Unit: s.unit, Region: s.region, PointTime: time.Unix(*at, 0).UTC(),
			ReceivedTime: received, Source: provider}
		r.Value, r.Quality = fetch.Usable(s.kind, c.values[i], q)
		rs = append(rs, r)
	}
	rs = fetch.Ordered(rs)
	period := quarter
	for i := 1; i < len(rs); i++ {
		if d := rs[i].PointTime.Sub(rs[i-1].PointTime); i == 1 || d < period {
			period = d
		}
	}
	period = min(period, time.Hour)
	for i := range rs {
		rs[i].Period = period
	}
	return series{rs, c.substitute}, nil
}
