//go:build unix

package hub

import "syscall"

// readsFD says that a descriptor may be read with plain system calls once it is ready.
const readsFD = true

func readFD(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }
