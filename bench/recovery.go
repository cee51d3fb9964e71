package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/tidewire/tidewire/internal/load"
)

// recovery is what it costs when all clients come back at once after a cut, with messages missed, beside the same number that missed nothing.
func recovery(ctx context.Context, targets []target) error {
	conns, missed, away := 10_000, 100, 5*time.Second
	if *quick {
		conns, away = 2000, time.Second
	}
	fmt.Printf("## Recovery: %d clients come back at once after %v\n\n| clients | messages missed by each | seconds | CPU s | CPU µs a client | CPU µs a message | lost | doubled or out of order |\n|---|---|---|---|---|---|---|---|\n", conns, away)
	err := each(ctx, targets, func(s *server) error {
		if s.name != "history" {
			return nil
		}
		for _, n := range []int{0, missed} {
			if err := s.comeBack(ctx, conns, n, away); err != nil {
				return err
			}
		}
		return nil
	})
	fmt.Println()
	return err
}

func (s *server) comeBack(ctx context.Context, conns, missed int, away time.Duration) error {
	f, err := s.fleet(ctx, conns, oneChannel)
	if err != nil {
		return err
	}
	at, err := s.post(ctx, load.Payload("x", "before", 0, payloadSize))
	if err != nil {
		return err
	}
	f.Close()
	back := time.After(away)
	for i := range missed {
		if _, err := s.post(ctx, load.Payload(marker, "m", uint64(i), payloadSize)); err != nil {
			return err
		}
	}
	<-back
	base, start := s.usage(), time.Now()
	f, err = load.Dial(ctx, load.Options{
		URL: s.url, Subprotocols: s.subprotocols, Conns: conns, Retry: true, Ready: s.ready, ReadyCount: 1, Marker: []byte(marker), Sample: 1,
		Say: func(int) []string {
			return []string{`{"type":"hello","protocol":1}`, fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"bench","since":{"offset":%d,"epoch":%q}}`, at.Offset, at.Epoch)}
		},
	})
	if err != nil {
		return err
	}
	defer f.Close()
	want := uint64(conns) * uint64(missed)
	for deadline := time.Now().Add(time.Minute); f.Delivered() < want && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	took, after := time.Since(start), s.usage()
	settle(f)
	cpu := after.CPU() - base.CPU()
	perMessage := "–"
	if want > 0 {
		perMessage = fmt.Sprintf("%.2f", float64(cpu.Microseconds())/float64(want))
	}
	least, greatest := f.Counts()
	fmt.Printf("| %d | %d | %.2f | %.2f | %.0f | %s | %d | %d |\n", conns, missed, took.Seconds(), cpu.Seconds(), float64(cpu.Microseconds())/float64(conns), perMessage,
		f.Lost()+uint64(missed)-least, f.Disordered()+greatest-uint64(missed))
	return nil
}

type position struct {
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
}

// post publishes a message over HTTP.
func (s *server) post(ctx context.Context, data string) (at position, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+tidewireAddr+"/v1/channels/bench/messages", bytes.NewReader([]byte(`{"data":`+data+`}`)))
	if err != nil {
		return at, err
	}
	req.Header.Set("Authorization", "Bearer bench")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return at, err
	}
	defer func() { _ = resp.Body.Close() }()
	return at, json.NewDecoder(resp.Body).Decode(&at)
}
