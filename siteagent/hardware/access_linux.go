package hardware

import "syscall"

// allowed asks the kernel without opening the file.
func allowed(path string) bool {
	const readAndWrite = 4 | 2
	return syscall.Access(path, readAndWrite) == nil
}
