// Command classic is the usual WebSocket hub in Go, as a measure: gorilla/websocket, a goroutine that reads and one that writes for each connection, a channel of 256 messages
// between, and one hub goroutine. Whatever one client sends goes to all.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/gorilla/websocket"
)

type client struct {
	conn *websocket.Conn
	send chan []byte
}

type hub struct {
	clients              map[*client]bool
	broadcast            chan []byte
	register, unregister chan *client
}

func (h *hub) run() {
	for {
		select {
		case c := <-h.register:
			h.clients[c] = true
		case c := <-h.unregister:
			if h.clients[c] {
				delete(h.clients, c)
				close(c.send)
			}
		case m := <-h.broadcast:
			for c := range h.clients {
				select {
				case c.send <- m:
				default:
					delete(h.clients, c)
					close(c.send)
				}
			}
		}
	}
}

func (c *client) write(h *hub) {
	ping := time.NewTicker(54 * time.Second)
	defer ping.Stop()
	defer func() { _ = c.conn.Close() }()
	for {
		select {
		case m, ok := <-c.send:
			_ = c.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if !ok || c.conn.WriteMessage(websocket.TextMessage, m) != nil {
				return
			}
		case <-ping.C:
			if c.conn.WriteMessage(websocket.PingMessage, nil) != nil {
				return
			}
		}
	}
}

func (c *client) read(h *hub) {
	defer func() {
		h.unregister <- c
		_ = c.conn.Close()
	}()
	c.conn.SetReadLimit(1 << 20)
	_ = c.conn.SetReadDeadline(time.Now().Add(60 * time.Second))
	c.conn.SetPongHandler(func(string) error { return c.conn.SetReadDeadline(time.Now().Add(60 * time.Second)) })
	for {
		_, m, err := c.conn.ReadMessage()
		if err != nil {
			return
		}
		h.broadcast <- m
	}
}

func main() {
	h := &hub{clients: map[*client]bool{}, broadcast: make(chan []byte), register: make(chan *client), unregister: make(chan *client)}
	go h.run()
	up := websocket.Upgrader{ReadBufferSize: 1024, WriteBufferSize: 1024, CheckOrigin: func(*http.Request) bool { return true }}
	http.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		c := &client{conn, make(chan []byte, 256)}
		h.register <- c
		go c.write(h)
		go c.read(h)
	})
	http.HandleFunc("/free", func(w http.ResponseWriter, _ *http.Request) {
		debug.FreeOSMemory()
		fmt.Fprintln(w, "ok")
	})
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	log.Fatal(http.Serve(l, nil))
}
