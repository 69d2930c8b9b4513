package hardware

import (
	"strings"

	"golang.org/x/sys/unix"
)

// mostLog is how much of the kernel's log is kept, in bytes.
const mostLog = 1 << 20

// kernelLog is the end of the kernel's log as far as it is readable, which it
// mostly is to root only and not in containers. It does not wait for more lines.
func kernelLog() string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	var log strings.Builder
	record := make([]byte, 8<<10) // a read gives one
	for log.Len() < mostLog {
		n, err := unix.Read(fd, record)
		if err == unix.EPIPE || err == unix.EINTR { // overwritten meanwhile: go on with the next
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		if line := string(record[:n]); strings.Contains(line, "NVRM") {
			log.WriteString(line)
		}
	}
	return log.String()
}
