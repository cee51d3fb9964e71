// Command centrifuge is the server of the test js/e2e/centrifuge.test.ts: a real Centrifuge node that speaks JSON over WebSocket. Channels under "h:" keep a history and are
// recovered, those under "no:" are refused, all others are plain. A connection without a token is anonymous; "expired" is a token that must be replaced, "wrong" one that is refused for
// good, and "brief-" begins one that lasts a second.
//
// It says its address, is driven over HTTP, and ends with its standard input:
//
//	GET  /live?channel=C     {"live":1,"peak":1,"sockets":1}: subscriptions of C now, and the most there ever were at once; connections
//	POST /publish?channel=C  publishes the body, as often as n says, with {n} replaced by 1, 2, 3 …
//	POST /kill               cuts all connections, as a network does
//	POST /unsubscribe?channel=C  ends all subscriptions of C; resubscribe=1 lets clients come back
//	POST /forget?channel=C   drops the history of C
//	GET  /tokens             the tokens seen so far
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/centrifugal/centrifuge"
)

const (
	historySize = 100
	historyTTL  = time.Hour
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

type server struct {
	node *centrifuge.Node

	mu     sync.Mutex // guards below
	live   map[string]int
	peak   map[string]int
	conns  map[net.Conn]struct{} // those that became WebSockets
	tokens []string
}

func run() error {
	node, err := centrifuge.New(centrifuge.Config{})
	if err != nil {
		return err
	}
	s := &server{node: node, live: map[string]int{}, peak: map[string]int{}, conns: map[net.Conn]struct{}{}}
	node.OnConnecting(s.connecting)
	node.OnConnect(s.connect)
	if err := node.Run(); err != nil {
		return err
	}
	defer func() { _ = node.Shutdown(context.Background()) }()

	mux := http.NewServeMux()
	mux.Handle("GET /connection/websocket", centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{CheckOrigin: func(*http.Request) bool { return true }}))
	mux.HandleFunc("GET /live", s.counts)
	mux.HandleFunc("POST /publish", s.publish)
	mux.HandleFunc("POST /kill", s.kill)
	mux.HandleFunc("POST /unsubscribe", s.unsubscribe)
	mux.HandleFunc("POST /forget", s.forget)
	mux.HandleFunc("GET /tokens", s.seen)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ConnState: s.state}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = web.Close()
	}()
	if err := web.Serve(listener); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func (s *server) connecting(_ context.Context, e centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
	s.mu.Lock()
	s.tokens = append(s.tokens, e.Token)
	s.mu.Unlock()
	reply := centrifuge.ConnectReply{Credentials: &centrifuge.Credentials{UserID: e.Token}, ClientSideRefresh: true}
	switch {
	case e.Token == "expired":
		return reply, centrifuge.ErrorTokenExpired
	case e.Token == "wrong":
		return reply, centrifuge.DisconnectInvalidToken
	case strings.HasPrefix(e.Token, "brief-"):
		reply.Credentials.ExpireAt = time.Now().Add(time.Second).Unix()
	}
	return reply, nil
}

func (s *server) connect(client *centrifuge.Client) {
	client.OnSubscribe(func(e centrifuge.SubscribeEvent, answer centrifuge.SubscribeCallback) {
		if strings.HasPrefix(e.Channel, "no:") {
			answer(centrifuge.SubscribeReply{}, centrifuge.ErrorPermissionDenied)
			return
		}
		s.count(e.Channel, 1)
		answer(centrifuge.SubscribeReply{Options: centrifuge.SubscribeOptions{EnableRecovery: keeps(e.Channel)}}, nil)
	})
	client.OnUnsubscribe(func(e centrifuge.UnsubscribeEvent) { s.count(e.Channel, -1) })
	client.OnPublish(func(e centrifuge.PublishEvent, answer centrifuge.PublishCallback) {
		if strings.HasPrefix(e.Channel, "no:") {
			answer(centrifuge.PublishReply{}, centrifuge.ErrorPermissionDenied)
			return
		}
		answer(centrifuge.PublishReply{Options: options(e.Channel, e.ClientInfo)}, nil)
	})
	client.OnRefresh(func(e centrifuge.RefreshEvent, answer centrifuge.RefreshCallback) {
		s.mu.Lock()
		s.tokens = append(s.tokens, e.Token)
		s.mu.Unlock()
		answer(centrifuge.RefreshReply{}, nil)
	})
}

func keeps(channel string) bool { return strings.HasPrefix(channel, "h:") }

func options(channel string, info *centrifuge.ClientInfo) centrifuge.PublishOptions {
	o := centrifuge.PublishOptions{ClientInfo: info}
	if keeps(channel) {
		o.HistorySize, o.HistoryTTL = historySize, historyTTL
	}
	return o
}

func (s *server) count(channel string, change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[channel] += change
	s.peak[channel] = max(s.peak[channel], s.live[channel])
}

func (s *server) state(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == http.StateHijacked {
		s.conns[conn] = struct{}{}
	}
}

func (s *server) counts(w http.ResponseWriter, r *http.Request) {
	channel := r.FormValue("channel")
	s.mu.Lock()
	defer s.mu.Unlock()
	write(w, map[string]int{"live": s.live[channel], "peak": s.peak[channel], "sockets": s.node.Hub().NumClients()})
}

func (s *server) publish(w http.ResponseWriter, r *http.Request) {
	channel := r.URL.Query().Get("channel")
	count, _ := strconv.Atoi(r.URL.Query().Get("n"))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	for i := 1; err == nil && i <= max(count, 1); i++ {
		data := []byte(strings.ReplaceAll(string(body), "{n}", strconv.Itoa(i)))
		if keeps(channel) {
			_, err = s.node.Publish(channel, data, centrifuge.WithHistory(historySize, historyTTL))
		} else {
			_, err = s.node.Publish(channel, data)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *server) kill(http.ResponseWriter, *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
	clear(s.conns)
}

func (s *server) unsubscribe(_ http.ResponseWriter, r *http.Request) {
	channel := r.URL.Query().Get("channel")
	end := centrifuge.Unsubscribe{Code: 2000, Reason: "ended"}
	if r.URL.Query().Has("resubscribe") {
		end = centrifuge.Unsubscribe{Code: 2500, Reason: "moved"}
	}
	for _, client := range s.node.Hub().Connections() {
		client.Unsubscribe(channel, end)
	}
}

func (s *server) forget(w http.ResponseWriter, r *http.Request) {
	if err := s.node.RemoveHistory(r.URL.Query().Get("channel")); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *server) seen(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	write(w, s.tokens)
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
