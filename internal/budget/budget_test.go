package budget_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewire/tidewire/internal/budget"
)

// S31: those refused are told delays that grow with their number, so that they come back as the rate allows.
func TestS31_AcceptsSpreadsThoseItRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.NewAccepts(10, 20)
		var last time.Duration
		for i := range 120 {
			ok, retry := b.Take()
			if ok != (i < 20) {
				t.Fatalf("take %d: %v", i, ok)
			}
			last = retry
		}
		if last < 7*time.Second || last > 13*time.Second { // a hundred wait, ten a second
			t.Fatalf("the last is told %s", last)
		}
		time.Sleep(time.Second)
		for i := range 11 {
			if ok, _ := b.Take(); ok != (i < 10) {
				t.Fatalf("after a second, take %d: %v", i, ok)
			}
		}
	})
}

// S06: a flood that is paced between refills is stubborn all the same; one that pauses is not.
func TestS06_FramesNoticesThoseWhoGoOn(t *testing.T) {
	t.Parallel()
	b := budget.NewFrames(0, 100)
	stubborn := false
	passed := 0
	for ms := range uint32(2000) { // a frame each millisecond, with 50 allowed a second
		ok, retry, over := b.Take(ms, 50, 100)
		if ok {
			passed++
		} else if retry <= 0 {
			t.Fatal("no delay")
		}
		stubborn = stubborn || over
	}
	if !stubborn || passed < 190 || passed > 210 {
		t.Fatalf("stubborn %v, %d passed", stubborn, passed)
	}
	b = budget.NewFrames(0, 100)
	for burst := range uint32(10) { // 150 at once, then two seconds of silence, again and again
		for range 150 {
			if _, _, over := b.Take(burst*2000, 50, 100); over {
				t.Fatalf("burst %d: stubborn", burst)
			}
		}
	}
}
