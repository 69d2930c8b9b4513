package merge

import "fmt"

// buffers writes the weighted mean of the updates' buffer values to dst. The
// sum is in float64: a mean of non-negative values stays non-negative, and one
// update's values arrive unchanged.
func (m *Mean) buffers(dst []float32) error {
	if len(dst) == 0 {
		return nil
	}
	sum := make([]float64, len(dst))
	for i, u := range m.updates {
		share := m.shares[i]
		err := u.Payload.EachBuffer(func(at int, v []float32) {
			for j, x := range v {
				sum[at+j] += float64(share * float64(x))
			}
		})
		if err != nil {
			return fmt.Errorf("update of %q: %w", u.Member, err)
		}
	}
	for i, v := range sum {
		dst[i] = float32(v)
	}
	return nil
}
