// Command kernel is the least that a server can do, as a measure: whatever one client sends is written to all with one bare write(2) each, from the goroutine that read it. It has no
// queues, no channels and no regard for slow clients.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/gobwas/ws"
)

func main() {
	var mu sync.Mutex
	var fds []int
	http.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, rw, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			return
		}
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			log.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			dup, err := syscall.Dup(int(fd))
			if err != nil {
				log.Fatal(err)
			}
			mu.Lock()
			fds = append(fds, dup)
			mu.Unlock()
		})
		go func() {
			for {
				h, err := ws.ReadHeader(rw)
				if err != nil {
					return
				}
				p := make([]byte, h.Length)
				if _, err := io.ReadFull(rw, p); err != nil {
					return
				}
				if h.OpCode != ws.OpText {
					continue
				}
				ws.Cipher(p, h.Mask, 0)
				frame := ws.MustCompileFrame(ws.NewTextFrame(p))
				mu.Lock()
				for _, fd := range fds {
					_, _ = syscall.Write(fd, frame)
				}
				mu.Unlock()
			}
		}()
	})
	http.HandleFunc("/free", func(w http.ResponseWriter, _ *http.Request) {
		debug.FreeOSMemory()
		fmt.Fprintln(w, "ok")
	})
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(l, nil))
}
