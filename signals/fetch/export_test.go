package fetch

// Sizes of what the client remembers.
func (c *Client) Sizes() (entries, states, flights int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries), len(c.states), len(c.flights)
}

// Remarks and ParseTime's neighbours for the fuzz tests.
var (
	Excerpt = excerpt
	Scrub   = scrub
)
