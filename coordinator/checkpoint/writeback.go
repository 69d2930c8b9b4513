package checkpoint

import (
	"io"
	"sync"
)

// writebackEvery is how many bytes gather before the disk is told to take them.
const writebackEvery = 32 << 20

// writeback has a big file's bytes on their way to the disk while the rest is still
// being made, so that the sync at the end finds little left to do. It makes nothing
// durable.
type writeback struct {
	f      io.Writer
	told   int64 // bytes given to the disk
	next   chan int64
	worker sync.WaitGroup
}

// reached starts the way to the disk of what lies before end. It never waits for it:
// while the disk is busy, what comes next gathers.
func (w *writeback) reached(end int64) {
	if end-w.told < writebackEvery {
		return
	}
	if w.next == nil {
		next, from := make(chan int64, 1), w.told
		w.next = next
		w.worker.Go(func() {
			for to := range next {
				startWriteback(w.f, from, to-from)
				from = to
			}
		})
	}
	select {
	case w.next <- end:
		w.told = end
	default:
	}
}

// stop waits for the call at work, which must not outlive the file.
func (w *writeback) stop() {
	if w.next != nil {
		close(w.next)
		w.next = nil
		w.worker.Wait()
	}
}
