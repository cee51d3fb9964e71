package ackbus_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tidewire/tidewire/ackbus"
)

func receivers(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = "client-" + strconv.Itoa(i)
	}
	return ids
}

// counter is a channel that counts the bytes posted.
type counter struct {
	discard
	posts, bytes int
}

func (c *counter) Post(message []byte) error {
	c.posts++
	c.bytes += len(message)
	return nil
}

// B03: one post of the same size, however many receivers. What is left is to note each of them.
func BenchmarkBroadcast(b *testing.B) {
	frame := make([]byte, 256)
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("receivers=%d", n), func(b *testing.B) {
			channel := &counter{}
			bus, err := ackbus.New(channel, ackbus.Options{AckTimeout: time.Hour, MaxPending: 1000})
			if err != nil {
				b.Fatal(err)
			}
			defer bus.Dispose()
			ids := receivers(n)
			b.ReportAllocs()
			for b.Loop() {
				if err := bus.Broadcast(frame, ids...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(channel.posts)/float64(b.N), "posts/op")
			b.ReportMetric(float64(channel.bytes)/float64(b.N), "posted-B/op")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/receiver")
		})
	}
}

// One frame sent and acknowledged.
func BenchmarkSendAck(b *testing.B) {
	c := newBench(b, ackbus.Options{})
	bus, receive := c.Bus, c.receive
	c.posting = func() error { return nil }
	acks := make([][]byte, 1000)
	frame := make([]byte, 256)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i%len(acks) == 0 {
			b.StopTimer()
			c.posted = nil
			for j := range acks {
				acks[j] = ackbus.EncodeAck(uint64(i+j+1), "client-42")
			}
			b.StartTimer()
		}
		if err := bus.Send("client-42", frame); err != nil {
			b.Fatal(err)
		}
		receive(acks[i%len(acks)])
		i++
	}
	if n := bus.Pending()["client-42"]; n != 0 {
		b.Fatalf("%d pending", n)
	}
}

// B12: a million frames in flight, to one receiver and to a thousand.
func BenchmarkOutstanding(b *testing.B) {
	const frames = 1_000_000
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("receivers=%d", n), func(b *testing.B) {
			ids := receivers(n)
			for b.Loop() {
				bus, err := ackbus.New(discard{}, ackbus.Options{AckTimeout: time.Hour})
				if err != nil {
					b.Fatal(err)
				}
				before := heap()
				for i := range frames {
					_ = bus.Send(ids[i%n], nil)
				}
				b.ReportMetric(float64(heap()-before)/frames, "B/frame")
				bus.Dispose()
			}
		})
	}
}
