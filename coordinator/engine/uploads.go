package engine

// What the coordinator holds is bounded by three vectors of the model's size and
// 100 MB, whatever the number of sites: uploads share what the model leaves of it.
const (
	// smallUploads is what they may always hold, in bytes.
	smallUploads = 16 << 20
	// connectionsReserve is kept free for connections where uploads have a vector's
	// memory: HTTP/2's windows grow with the number of sites.
	connectionsReserve = 48 << 20
)

// uploadMemory is how many bytes uploads may hold in memory beside a model. Theta,
// momentum and residual are three vectors; without a residual its place is free.
func uploadMemory(m *model) int64 {
	if m.residual != nil {
		return smallUploads
	}
	return max(smallUploads, 4*int64(m.domain.Len())-connectionsReserve)
}
