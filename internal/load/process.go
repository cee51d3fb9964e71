package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has used.
type Usage struct {
	User, System time.Duration
	RSS          uint64 // bytes now
}

// CPU is user and system time together.
func (u Usage) CPU() time.Duration { return u.User + u.System }

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// UsageOf reads the use of a local process. It works on Linux only.
func UsageOf(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("load: %w", err)
	}
	// The name in parentheses may hold anything.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 22 {
		return Usage{}, fmt.Errorf("load: /proc/%d/stat is too short", pid)
	}
	ticks := func(s string) time.Duration {
		n, _ := strconv.ParseInt(s, 10, 64)
		return time.Duration(n) * time.Second / ticksPerSecond
	}
	pages, _ := strconv.ParseUint(fields[21], 10, 64)
	return Usage{User: ticks(fields[11]), System: ticks(fields[12]), RSS: pages * uint64(os.Getpagesize())}, nil
}
