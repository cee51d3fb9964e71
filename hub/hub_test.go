package hub_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/tidewire/tidewire/hub"
)

type handler struct {
	onMessage func(c *hub.Conn, binary bool, data []byte)
	onClosed  func(c *hub.Conn, r hub.Reason)
}

func (h handler) Message(c *hub.Conn, binary bool, data []byte) {
	if h.onMessage != nil {
		h.onMessage(c, binary, data)
	}
}

func (h handler) Closed(c *hub.Conn, r hub.Reason) {
	if h.onClosed != nil {
		h.onClosed(c, r)
	}
}

func TestSmoke(t *testing.T) {
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprint("portable=", portable), func(t *testing.T) {
			h := hub.New(hub.Options{Portable: portable})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- h.Run(ctx) }()
			{
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c, err := h.Upgrade(w, r, hub.UpgradeOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					c.Start(handler{onMessage: func(c *hub.Conn, _ bool, data []byte) {
						name := string(data)
						c.Go(name, func() { _ = c.Join(name, hub.Everyone, []byte("joined "+name)) })
					}})
				}))
				defer srv.Close()
				conn, _, err := websocket.Dial(ctx, "ws"+srv.URL[4:], nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = conn.Write(ctx, websocket.MessageText, []byte("a"))
				_, b, err := conn.Read(ctx)
				if err != nil || string(b) != "joined a" {
					t.Fatal(string(b), err)
				}
				go func() {
					for i := range 1000 {
						_, _ = h.Publish("a", hub.Message{Encode: func(hub.Dialect) []byte { return fmt.Append(nil, i) }, Policy: hub.DropNewest})
						if i%100 == 0 {
							time.Sleep(time.Millisecond)
						}
					}
				}()
				for i := range 1000 {
					_, b, err := conn.Read(ctx)
					if err != nil || string(b) != fmt.Sprint(i) {
						t.Fatal(i, string(b), err)
					}
				}
				cancel()
				_, _, err = conn.Read(context.Background())
				if websocket.CloseStatus(err) != 1001 {
					t.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", h.Stats())
		})
	}
}
