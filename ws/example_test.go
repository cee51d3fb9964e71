package ws_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/ws"
)

// A hub on a mux, and a client that subscribes to a channel and stays connected.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	hub := ws.NewHub()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = hub.Run(ctx)
	}()

	mux := http.NewServeMux()
	mux.Handle("/ws", hub.Handler())
	server := httptest.NewServer(mux)

	messages := make(chan ws.Message)
	var client *ws.ReconnectingClient
	client = ws.NewReconnectingClient(ws.ReconnectConfig{
		URL:        "ws" + strings.TrimPrefix(server.URL, "http") + "/ws",
		HTTPClient: server.Client(),
		OnConnect:  func() { _ = client.Send(ws.Message{Type: ws.TypePing}) },
		OnMessage:  func(msg ws.Message) { messages <- msg },
	})
	_ = client.Subscribe("process:proc-1") // once connected, and after every reconnect
	done := make(chan error)
	go func() { done <- client.Connect(ctx) }()

	fmt.Println((<-messages).Type) // messages are handled in order: the client is subscribed now
	_ = hub.SendProcessOutput("proc-1", "hello")
	_ = hub.SendProcessStatus("proc-1", "exited", 0)
	for range 2 {
		msg := <-messages
		fmt.Println(msg.Type, msg.Channel, msg.Data)
	}

	_ = client.Close()
	fmt.Println(<-done)
	cancel()
	<-stopped
	server.Close()
	// Output:
	// pong
	// process_output process:proc-1 hello
	// process_status process:proc-1 map[exitCode:0 status:exited]
	// <nil>
}

// Clients present a key in the Authorization header; a page presents it as a subprotocol.
func ExampleNewAPIKeyAuth() {
	auth := ws.NewAPIKeyAuth(map[string]string{
		"secret-key": "user-1",
	})
	hub := ws.NewHubWithConfig(ws.HubConfig{Authenticator: auth})

	request := httptest.NewRequest("GET", "/ws", nil)
	request.Header.Set("Authorization", "Bearer secret-key")
	fmt.Println(auth.Authenticate(request).UserID)
	fmt.Println(hub.ClientCount())
	// Output:
	// user-1
	// 0
}

// Users with a JSON Web Token, who may subscribe to their own channel only.
func ExampleNewJWTAuth() {
	users, err := ws.NewJWTAuth(auth.JWTOptions{
		JWKSURL:  "https://id.example.com/.well-known/jwks.json",
		Issuer:   "https://id.example.com/",
		Audience: []string{"realtime"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	hub := ws.NewHubWithConfig(ws.HubConfig{
		Authenticator:  users,
		AllowedOrigins: []string{"https://app.example.com"},
		OnSubscribe: func(client *ws.Client, channel string) error {
			if channel != "user:"+client.UserID {
				return errors.New("not the user's channel")
			}
			return nil
		},
	})
	http.Handle("/ws", hub.Handler())
}

func ExampleHub_SendToChannel() {
	hub := ws.NewHub()
	err := hub.SendToChannel("process:proc-1", ws.Message{
		Type: ws.TypeProcessOutput,
		Data: "output line",
	})
	fmt.Println(err) // nobody is subscribed, which is no error
	// Output: <nil>
}

func ExampleAuthenticatorFunc() {
	hub := ws.NewHubWithConfig(ws.HubConfig{
		Authenticator: ws.AuthenticatorFunc(func(r *http.Request) ws.AuthResult {
			cookie, err := r.Cookie("session")
			if err != nil {
				return ws.AuthResult{Valid: false, Error: err}
			}
			return ws.AuthResult{Valid: true, UserID: cookie.Value, Claims: map[string]any{"role": "user"}}
		}),
		OnAuthFailure: func(r *http.Request, result ws.AuthResult) {
			fmt.Println("refused", r.RemoteAddr, result.Error)
		},
		OnConnect: func(client *ws.Client) {
			fmt.Println("connected", client.UserID, client.Claims["role"])
		},
	})
	http.HandleFunc("/socket", hub.HandleWebSocket)
}

func ExampleReconnectingClient() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so that the example ends

	client := ws.NewReconnectingClient(ws.ReconnectConfig{
		URL:               "ws://server/ws",
		InitialBackoff:    1 * time.Second,
		MaxBackoff:        30 * time.Second,
		BackoffMultiplier: 2.0,
		MaxRetries:        0, // unlimited
		OnConnect:         func() { /* ... */ },
		OnDisconnect:      func() { /* ... */ },
		OnReconnect:       func(attempt int) { /* ... */ },
		OnMessage:         func(msg ws.Message) { /* ... */ },
	})

	go client.Connect(ctx) // blocks until context cancelled or max retries exceeded

	fmt.Println(client.State() == ws.StateConnected)
	// Output: false
}
