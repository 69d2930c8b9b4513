package codec

// aheadBytes is how much of a payload an Adder reads at a time.
const aheadBytes = 64 << 10

// Adder adds several payloads block by block, each from front to back, so that its
// bytes are read in large pieces and once. It is for one goroutine; its memory is
// 64 KiB for each payload.
type Adder struct {
	payloads []*Payload
	windows  []window
	scratch  *scratch
	group    group
}

// NewAdder makes an Adder of payloads, which it numbers from 0.
func NewAdder(payloads []*Payload) *Adder {
	a := &Adder{payloads: payloads, windows: make([]window, len(payloads)), scratch: new(scratch)}
	for i, p := range payloads {
		a.windows[i] = window{r: p.r, size: p.size, buf: make([]byte, min(aheadBytes, max(p.size, int64(p.f.hostileBytes(p.f.group)))))}
	}
	return a
}

// Add adds w times block b of payload i to dst, as Payload.AddRange does. Another
// order than the domain's costs time only.
func (a *Adder) Add(i int, dst []float32, b Block, w float32) error {
	return a.payloads[i].addBlock(dst[:b.Len()], b, w, &a.windows[i], a.scratch, &a.group)
}
