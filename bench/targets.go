package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/tidewire/tidewire/internal/load"
)

const (
	centrifugoVersion = "v6.9.1"
	natsVersion       = "v2.15.3"
)

// target is a server and how to speak to it.
type target struct {
	name    string
	build   func(context.Context) error
	command func(context.Context) *exec.Cmd
	env     []string

	health   string // host:port/path that answers HTTP when it is up
	freePath string // host:port/path that makes it give memory back
	url      string
	maxConns int
	share    float64 // of the deliveries to run, so that slow servers end too

	subprotocols  []string
	binary        bool
	subscribe     func(i int, channel string) []string
	subscribeMany func(i int, channels []string) []string
	readyMany     func(n int) int
	join          func(i int, channel string) []string // with presence
	maxMembers    int                                  // of one room, for servers whose cost grows with the square
	ready         []byte
	readyCount    int
	onFrame       func(payload []byte) string
	publisher     func(context.Context, *server) (*publisher, error)
}

// publisher sends messages to the server under test.
type publisher struct {
	workers int
	send    func(ctx context.Context, channel, data string) error
	close   func()
}

func (p *publisher) to(channel string) func(context.Context, int, uint64, string) error {
	return func(ctx context.Context, _ int, _ uint64, data string) error { return p.send(ctx, channel, data) }
}

const (
	tidewireAddr   = "127.0.0.1:18081"
	classicAddr    = "127.0.0.1:18082"
	kernelAddr     = "127.0.0.1:18087"
	centrifugoPort = "18083"
	natsWSPort     = "18084"
	natsMonitor    = "18085"
	natsPort       = "18086"
)

func allTargets() []target {
	tw := tidewire()
	viaHTTP := tw
	viaHTTP.name = "tidewire-http"
	viaHTTP.publisher = httpPublisher(64, "Bearer bench", func(channel, data string) (string, string) {
		return "http://" + tidewireAddr + "/v1/channels/" + channel + "/messages", `{"data":` + data + `}`
	})
	portable := tw
	portable.name, portable.env = "portable", []string{"PORTABLE=1"}
	history := tw
	history.name, history.env = "history", []string{"HISTORY=1"}
	return []target{tw, history, viaHTTP, portable, kernel(), classic(), centrifugo(), nats()}
}

func tidewire() target {
	sub := func(sid int, channel, rest string) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"%d","channel":"%s"%s}`, sid, channel, rest)
	}
	const hello = `{"type":"hello","protocol":1}`
	return target{
		name:     "tidewire",
		build:    func(ctx context.Context) error { return goBuild(ctx, "./server", "tidewire") },
		command:  func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, *bin+"/tidewire", tidewireAddr) },
		health:   tidewireAddr + "/healthz",
		freePath: tidewireAddr + "/free",
		url:      "ws://" + tidewireAddr + "/v1/socket",
		maxConns: 10_000, share: 1,
		subprotocols: []string{"tidewire.1"},
		subscribe:    func(_ int, channel string) []string { return []string{hello, sub(1, channel, "")} },
		subscribeMany: func(_ int, channels []string) []string {
			out := []string{hello}
			for i, c := range channels {
				out = append(out, sub(i, c, ""))
			}
			return out
		},
		readyMany: func(n int) int { return n },
		join: func(i int, channel string) []string {
			return []string{hello, sub(1, channel, fmt.Sprintf(`,"presence":{"data":{"name":"member %d"}}`, i))}
		},
		ready: []byte(`"subscribed"`), readyCount: 1,
		publisher: socketPublisher([]string{hello}, "welcome", func(channel, data string) string {
			return `{"type":"publish","channel":"` + channel + `","data":` + data + `}`
		}),
	}
}

func classic() target {
	return target{
		name:     "classic",
		build:    func(ctx context.Context) error { return goBuild(ctx, "./classic", "classic") },
		command:  func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, *bin+"/classic", classicAddr) },
		health:   classicAddr + "/free",
		freePath: classicAddr + "/free",
		url:      "ws://" + classicAddr + "/ws",
		maxConns: 10_000, share: 0.2,
		subscribe: func(int, string) []string { return nil },
		publisher: func(ctx context.Context, s *server) (*publisher, error) {
			// Its own connection is a member too, so it must read; Drive counts the fleet's deliveries only.
			return socketPublisher(nil, "", func(_, data string) string { return data })(ctx, s)
		},
	}
}

func kernel() target {
	t := classic()
	t.name, t.share = "kernel", 0.2
	t.build = func(ctx context.Context) error { return goBuild(ctx, "./kernel", "kernel") }
	t.command = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, *bin+"/kernel", kernelAddr) }
	t.health, t.freePath, t.url = kernelAddr+"/free", kernelAddr+"/free", "ws://"+kernelAddr+"/ws"
	return t
}

func centrifugo() target {
	addr := "127.0.0.1:" + centrifugoPort
	connect := `{"id":1,"connect":{}}`
	sub := func(id int, channel string) string {
		return fmt.Sprintf(`{"id":%d,"subscribe":{"channel":"%s"}}`, id, channel)
	}
	return target{
		name: "centrifugo",
		build: func(ctx context.Context) error {
			return goBuild(ctx, "github.com/centrifugal/centrifugo/v6@"+centrifugoVersion, "centrifugo")
		},
		command: func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, *bin+"/centrifugo", "--config", "centrifugo.json", "--http_server.port", centrifugoPort, "--http_server.address", "127.0.0.1")
		},
		health: addr + "/health",
		url:    "ws://" + addr + "/connection/websocket",
		// Each of its connections costs about 50 KB.
		maxConns: 9500, share: 0.25,
		subscribe: func(_ int, channel string) []string { return []string{connect, sub(2, channel)} },
		subscribeMany: func(_ int, channels []string) []string {
			out := []string{connect}
			for i, c := range channels {
				out = append(out, sub(2+i, c))
			}
			return out
		},
		// It may put several answers into one frame, so what counts is the last one's id.
		readyMany:  func(int) int { return 1 },
		maxMembers: 1000,
		join: func(_ int, channel string) []string {
			return []string{connect, sub(2, "roster:"+channel)}
		},
		ready: []byte(`"subscribe"`), readyCount: 1,
		onFrame: func(p []byte) string {
			if bytes.Equal(bytes.TrimSpace(p), []byte("{}")) {
				return "{}"
			}
			return ""
		},
		publisher: httpPublisher(64, "apikey bench", func(channel, data string) (string, string) {
			return "http://" + addr + "/api/publish", `{"channel":"` + channel + `","data":` + data + `}`
		}),
	}
}

func nats() target {
	sub := func(i int, channel string) string { return fmt.Sprintf("SUB %s %d\r\n", channel, i) }
	const connect = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n"
	config := fmt.Sprintf("listen: 127.0.0.1:%s\nhttp: 127.0.0.1:%s\nmax_connections: 20000\nwebsocket { listen: \"127.0.0.1:%s\", no_tls: true }\n", natsPort, natsMonitor, natsWSPort)
	return target{
		name: "nats",
		build: func(ctx context.Context) error {
			if err := goBuild(ctx, "github.com/nats-io/nats-server/v2@"+natsVersion, "nats-server"); err != nil {
				return err
			}
			return os.WriteFile(*bin+"/nats.conf", []byte(config), 0o644)
		},
		command: func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, *bin+"/nats-server", "-c", *bin+"/nats.conf")
		},
		health:   "127.0.0.1:" + natsMonitor + "/varz",
		url:      "ws://127.0.0.1:" + natsWSPort + "/",
		maxConns: 9500, share: 0.3,
		binary: true,
		subscribe: func(_ int, channel string) []string {
			return []string{connect + sub(1, channel) + "PING\r\n"}
		},
		subscribeMany: func(_ int, channels []string) []string {
			var b strings.Builder
			b.WriteString(connect)
			for i, c := range channels {
				b.WriteString(sub(i+1, c))
			}
			b.WriteString("PING\r\n")
			return []string{b.String()}
		},
		readyMany: func(int) int { return 1 },
		ready:     []byte("PONG"), readyCount: 1,
		onFrame: func(p []byte) string {
			if bytes.Contains(p, []byte("PING\r\n")) {
				return "PONG\r\n"
			}
			return ""
		},
		publisher: socketPublisher([]string{connect + "PING\r\n"}, "PONG", func(channel, data string) string {
			return fmt.Sprintf("PUB %s %d\r\n%s\r\n", channel, len(data), data)
		}),
	}
}

// socketPublisher publishes over one WebSocket of the server and waits for no answers.
func socketPublisher(say []string, ready string, encode func(channel, data string) string) func(context.Context, *server) (*publisher, error) {
	return func(ctx context.Context, s *server) (*publisher, error) {
		o := load.Options{
			URL: s.url, Subprotocols: s.subprotocols, Conns: 1, SayBinary: s.binary, Say: func(int) []string { return say },
			Ready: []byte(ready), OnFrame: s.onFrame,
		}
		if ready != "" {
			o.ReadyCount = 1
		}
		f, err := load.Dial(ctx, o)
		if err != nil {
			return nil, err
		}
		op := byte(0x81)
		if s.binary {
			op = 0x82
		}
		return &publisher{
			workers: 1,
			send: func(_ context.Context, channel, data string) error {
				return f.Write(0, load.AppendFrame(nil, op, []byte(encode(channel, data))))
			},
			close: f.Close,
		}, nil
	}
}

// httpPublisher publishes by POST requests, so many at once.
func httpPublisher(workers int, authorization string, request func(channel, data string) (url, body string)) func(context.Context, *server) (*publisher, error) {
	return func(context.Context, *server) (*publisher, error) {
		c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers, MaxConnsPerHost: workers}}
		return &publisher{
			workers: workers,
			send: func(ctx context.Context, channel, data string) error {
				url, body := request(channel, data)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
				if err != nil {
					return err
				}
				req.Header.Set("Authorization", authorization)
				if key, ok := strings.CutPrefix(authorization, "apikey "); ok {
					req.Header.Set("X-API-Key", key)
				}
				resp, err := c.Do(req)
				if err != nil {
					return err
				}
				defer func() { _ = resp.Body.Close() }()
				b, err := io.ReadAll(resp.Body)
				if err == nil && (resp.StatusCode != http.StatusOK || bytes.Contains(b, []byte(`"error"`))) {
					err = errors.New(resp.Status + " " + string(b))
				}
				return err
			},
			close: c.CloseIdleConnections,
		}, nil
	}
}
