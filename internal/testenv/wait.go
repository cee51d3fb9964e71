package testenv

import (
	"testing"
	"time"
)

// Eventually waits until f holds, and fails the test when it does not within patience.
func Eventually(t testing.TB, patience time.Duration, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %s", what, patience)
		case <-tick.C:
		}
	}
}
