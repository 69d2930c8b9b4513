package hardware

import "syscall"

// allowed asks the kernel without opening the file.
func allowed(name string) bool {
	const readAndWrite = 4 | 2
	return syscall.Access("/"+name, readAndWrite) == nil
}
