package server

import "fmt"

// NVML's numbers, in words. What has no word is left out.
var (
	architectures = map[uint32]string{
		2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin",
	}
	computeModes    = map[uint32]string{1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
	virtualizations = map[uint32]string{1: "passthrough", 2: "vgpu", 3: "host vgpu", 4: "host vsga"}
	recoveries      = map[uint32]string{1: "reset", 2: "reboot", 3: "drain", 4: "drain and reset", 5: "reset", 6: "reset", 7: "reboot"}
	fabrics         = map[uint8]string{1: "not started", 2: "in progress", 3: "completed"}
)

// troubles are the bits among the reasons for low clocks that no GPU in order
// shows.
var troubles = []struct {
	bit  uint64
	word string
}{
	{0x20, "software thermal slowdown"},
	{0x40, "hardware thermal slowdown"},
	{0x80, "power brake"},
}

// hardwareSlowdown is set with one of the troubles, or alone on older GPUs.
const hardwareSlowdown = 0x8

func slowdowns(bits uint64) (words []string) {
	for _, t := range troubles {
		if bits&t.bit != 0 {
			words = append(words, t.word)
		}
	}
	if bits&hardwareSlowdown != 0 && len(words) == 0 {
		words = append(words, "hardware slowdown")
	}
	return words
}

func fabric(state uint8, status uint32) string {
	word := fabrics[state]
	if word == "completed" && status != 0 {
		return fmt.Sprintf("completed with error %d", status)
	}
	return word
}
