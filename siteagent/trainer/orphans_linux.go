package trainer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// envMark is in the environment of all that descends from a supervised trainer.
const envMark = "GIRASSOL_TRAINER_MARK"

// markOf tells one agent's trainers from all others, over the agent's restarts: by
// the socket, and by the work folder itself, as other containers may use the same
// names. Empty where there is no such folder: then nothing is marked.
func markOf(socket, work string) string {
	path, err := filepath.Abs(socket)
	if err != nil || work == "" {
		return ""
	}
	var st syscall.Stat_t
	if syscall.Stat(work, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%s=%s@%d:%d", envMark, path, st.Dev, st.Ino)
}

// killMarked kills processes with the mark, except the caller, and says how many there
// were: what a trainer that was killed has left in sessions of its own, as torchrun's
// workers are, is nobody's child any more.
func killMarked(mark string) (n int) {
	if mark == "" {
		return 0
	}
	for range 3 { // one may have started another meanwhile
		ps := marked(mark)
		if len(ps) == 0 {
			break
		}
		n = max(n, len(ps))
		kill(ps)
	}
	return n
}

func marked(mark string) []process {
	var out []process
	for _, p := range processes() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if err != nil || p.pid == os.Getpid() {
			continue
		}
		for entry := range bytes.SplitSeq(env, []byte{0}) {
			if string(entry) == mark {
				out = append(out, p)
				break
			}
		}
	}
	return out
}
