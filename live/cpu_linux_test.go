package live

import (
	"syscall"
	"time"
)

// threadCPU is the time that the calling thread has computed: what a busy machine does not change much.
func threadCPU() time.Duration {
	var u syscall.Rusage
	const thread = 1 // RUSAGE_THREAD
	if err := syscall.Getrusage(thread, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
