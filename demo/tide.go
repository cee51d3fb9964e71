package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/tidewire/tidewire"
)

// The topics of the page that shows many tabs on one connection: on each a number goes up while somebody listens.
const (
	tideTopics   = 6
	tideInterval = 200 * time.Millisecond
)

func tideTopic(n int) string { return fmt.Sprintf("tide.%d", n+1) }

// declareTide declares the topics. They have a short history, so that a tab that takes over another's misses nothing.
func declareTide(node *tidewire.Node) error {
	return node.Channel("tide.{n}", tidewire.ChannelOptions{Guard: tidewire.Public, History: &tidewire.History{Size: 200, TTL: time.Minute}})
}

// runTide publishes until ctx ends.
func runTide(ctx context.Context, node *tidewire.Node) {
	tick := time.NewTicker(tideInterval)
	defer tick.Stop()
	var level [tideTopics]int
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for n := range level {
			if node.Subscribers(tideTopic(n)) == 0 {
				continue
			}
			level[n]++
			// What cannot be published now is one number that a page shows as missing.
			_, _ = node.Publish(ctx, tideTopic(n), map[string]int{"level": level[n]}, tidewire.PublishOptions{})
		}
	}
}

// serveTide says how many subscriptions the server has for each topic: the witness that tabs share them.
func serveTide(w http.ResponseWriter, node *tidewire.Node) {
	counts := map[string]int{}
	for n := range tideTopics {
		counts[tideTopic(n)] = node.Subscribers(tideTopic(n))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(counts)
}
