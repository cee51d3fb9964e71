package ackbus_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidewire/tidewire/ackbus"
	"github.com/tidewire/tidewire/hub"
)

func Example() {
	var room ackbus.Local // or a NATS subject, a WebSocket: whatever is a Channel
	bus, err := ackbus.New(room.Join(), ackbus.Options{
		AckTimeout:     2 * time.Second,
		OnSlowConsumer: func(receiver string) { fmt.Println("slow:", receiver) },
	})
	if err != nil {
		panic(err)
	}
	defer bus.Dispose()

	ctx, cancel := context.WithCancel(context.Background())
	receiver, err := ackbus.NewReceiver(room.Join(), "client-1", func(frame []byte) {
		fmt.Println(string(frame))
		cancel()
	}, ackbus.ReceiverOptions{})
	if err != nil {
		panic(err)
	}
	if err := bus.Send("client-1", []byte("hello")); err != nil {
		panic(err)
	}
	_ = receiver.Run(ctx) // handles and acknowledges until the end of ctx
	fmt.Println("pending:", bus.Pending()["client-1"])
	// Output:
	// hello
	// pending: 0
}

// publisher sends to subscribers by a bus. To its policy a receiver that is slow is one whose queue is full. B13
type publisher struct {
	bus    *ackbus.Bus
	policy hub.Policy

	mu   sync.Mutex
	held map[string][][]byte // by subscriber, at most maxHeld each
}

const maxHeld = 2

func (p *publisher) Publish(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, held := range p.held {
		switch {
		case !p.bus.Slow(id):
			for _, f := range append(held, frame) {
				_ = p.bus.Send(id, f)
			}
			p.held[id] = nil
		case p.policy == hub.Disconnect:
			fmt.Println("disconnect", id)
			p.bus.Close(id)
			delete(p.held, id)
		case p.policy == hub.DropOldest:
			p.held[id] = append(held, frame)[max(0, len(held)+1-maxHeld):]
		case p.policy == hub.DropNewest:
			fmt.Printf("drop %s\n", frame)
		}
	}
}

// B13: a hub applies its policy to what the bus says.
func ExampleBus_Slow() {
	for _, policy := range []hub.Policy{hub.DropNewest, hub.DropOldest, hub.Disconnect} {
		fmt.Println(policy)
		var room ackbus.Local
		bus, err := ackbus.New(room.Join(), ackbus.Options{})
		if err != nil {
			panic(err)
		}
		caughtUp, stop := context.WithCancel(context.Background())
		receiver, err := ackbus.NewReceiver(room.Join(), "ann", func(frame []byte) {
			fmt.Printf("ann got %s\n", frame)
			if string(frame) == "3" || string(frame) == "6" {
				stop()
			}
		}, ackbus.ReceiverOptions{})
		if err != nil {
			panic(err)
		}
		p := &publisher{bus: bus, policy: policy, held: map[string][][]byte{"ann": nil}}
		for i := range 5 { // and ann handles none of them yet
			p.Publish(fmt.Append(nil, i+1))
		}
		_ = receiver.Run(caughtUp)
		p.Publish([]byte("6"))
		fmt.Println("pending:", bus.Pending()["ann"])
		bus.Dispose()
	}
	// Output:
	// drop-newest
	// drop 4
	// drop 5
	// ann got 1
	// ann got 2
	// ann got 3
	// pending: 1
	// drop-oldest
	// ann got 1
	// ann got 2
	// ann got 3
	// pending: 3
	// disconnect
	// disconnect ann
	// ann got 1
	// ann got 2
	// ann got 3
	// pending: 0
}
