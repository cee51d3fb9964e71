package object_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/stream"
)

// One event waits and another wakes it.
func ExampleHost_Do() {
	host, err := object.NewHost(object.Options{})
	if err != nil {
		panic(err)
	}
	err = host.Do(context.Background(), "job.7", func(ctx context.Context, e *object.Event) error {
		handle, err := e.Subscribe("done")
		if err != nil {
			return err
		}
		go func() { // another request
			_ = host.Do(context.Background(), "job.7", func(_ context.Context, e *object.Event) error {
				_, err := e.Publish("done", "42")
				return err
			})
		}()
		status, text, err := e.Wait(ctx, handle, 10*time.Second)
		fmt.Println(status, text)
		return err
	})
	if err != nil {
		panic(err)
	}
	// Output: message 42
}

// A log is followed from any place on, without a gap between what was and what comes.
func ExampleEvent_Follow() {
	host, err := object.NewHost(object.Options{})
	if err != nil {
		panic(err)
	}
	err = host.Do(context.Background(), "job.7", func(ctx context.Context, e *object.Event) error {
		for _, text := range []string{"queued", "running", "done"} {
			if _, err := e.Append(ctx, text, ""); err != nil {
				return err
			}
		}
		for entry, err := range e.Follow(ctx, stream.Position{Offset: 1}) {
			if err != nil {
				return err
			}
			fmt.Println(entry.Offset, string(entry.Data))
			if string(entry.Data) == "done" {
				break
			}
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// 2 running
	// 3 done
}
