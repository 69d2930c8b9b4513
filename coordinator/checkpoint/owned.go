package checkpoint

// Owned says that this coordinator may still write to the store; the error wraps
// ErrFenced when a newer one has opened it. It is for what a coordinator promises
// without a commit: a fenced one knows nothing of what its successor has merged.
func (s *Store) Owned() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayWrite()
}
