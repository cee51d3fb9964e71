package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/tidewire/tidewire/internal/load"
	"github.com/tidewire/tidewire/wire"
)

// benchCmd is `tidewire bench`.
type benchCmd struct {
	URL        string        `help:"Address of the server." default:"http://localhost:8080" env:"TIDEWIRE_URL"`
	Token      string        `help:"Token of the clients." env:"TIDEWIRE_TOKEN"`
	Key        string        `help:"API key: publish over HTTP, which has no frame budget." env:"TIDEWIRE_KEY"`
	Conns      int           `help:"Connections that subscribe." default:"1000"`
	Channels   int           `help:"Channels, named PREFIX.0 and so on." default:"1"`
	PerConn    int           `help:"Channels that each connection subscribes to." default:"1"`
	Prefix     string        `help:"What channel names begin with: the server must allow PREFIX.0 and so on." default:"bench"`
	Publishers int           `help:"Publishers at once. Zero means as many as the rate needs, and 16 with a key." default:"0"`
	Rate       float64       `help:"Messages a second, all publishers together. Zero means as fast as the window allows." default:"10"`
	Window     int           `help:"Messages that may be on their way at once. Zero means no bound." default:"0"`
	Size       int           `help:"Bytes of one message's data." default:"128"`
	Duration   time.Duration `help:"How long to publish." default:"10s"`
	Dials      int           `help:"Handshakes at once." default:"64"`
}

const benchMarker = "~tidewire-bench~"

func (b *benchCmd) check() error {
	switch {
	case b.Conns < 1 || b.Channels < 1 || b.PerConn < 1 || b.PerConn > b.Channels:
		return errors.New("bench: --conns, --channels and --per-conn must be at least 1, and --per-conn at most --channels")
	case b.Conns*b.PerConn%b.Channels != 0:
		return errors.New("bench: --conns times --per-conn must be a multiple of --channels, so that all channels have as many subscribers")
	case b.Rate == 0 && b.Window == 0:
		return errors.New("bench: give --rate or --window")
	case b.Rate < 0 || b.Window < 0 || b.Size < 0 || b.Size > 128<<10 || b.Duration <= 0:
		return errors.New("bench: --rate, --window, --size (at most 131072) and --duration must not be negative")
	case b.Rate == 0 && b.Key == "":
		return errors.New("bench: without --rate messages go as fast as they can, which needs --key: a socket has a frame budget")
	case !wire.ValidChannel(b.Prefix):
		return errors.New("bench: --prefix is not a channel name")
	}
	return nil
}

func (b *benchCmd) channel(i int) string { return b.Prefix + "." + strconv.Itoa(i%b.Channels) }

// Run opens the connections, publishes, and prints the table.
func (b *benchCmd) Run(ctx context.Context, p *program) error {
	stdout, progress := p.stdout, p.stderr
	if err := b.check(); err != nil {
		return err
	}
	base, err := url.Parse(b.URL)
	if err != nil || base.Host == "" {
		return fmt.Errorf("bench: --url %q is not an address", b.URL)
	}
	if base.Scheme == "https" || base.Scheme == "wss" {
		return errors.New("bench: TLS is not supported: measure behind the proxy")
	}
	base.Scheme = "ws"
	if base.Path == "" || base.Path == "/" {
		base.Path = "/v1/socket"
	}
	server := &processMetrics{url: "http://" + base.Host + "/metrics"}

	fmt.Fprintf(progress, "connecting %d clients to %s\n", b.Conns, base.Host)
	dialing := time.Now()
	before := server.read(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fleet, err := load.Dial(ctx, b.options(base.String(), b.Conns, true, cancel))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer fleet.Close()
	setUp := time.Since(dialing)
	connected := server.read(ctx)

	publish, publishers, closePublisher, err := b.publisher(ctx, base, cancel)
	if err != nil {
		return err
	}
	defer closePublisher()
	stop := b.watch(ctx, fleet, progress)
	var next atomic.Uint64
	res, err := fleet.Drive(ctx, load.Run{
		Publish: func(ctx context.Context, p int, _ uint64, data string) error {
			return publish(ctx, p, b.channel(int(next.Add(1))), data)
		},
		Publishers: publishers, Marker: benchMarker, Size: b.Size, FanOut: b.Conns * b.PerConn / b.Channels,
		Window: b.Window, Rate: b.Rate, Duration: b.Duration,
	})
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("bench: publish: %w", err)
	}
	if cause := context.Cause(ctx); errors.Is(cause, errRefused) {
		return fmt.Errorf("bench: %w", cause)
	}
	after := server.read(context.WithoutCancel(ctx))
	b.table(stdout, res, fleet, setUp, before, connected, after)
	if res.Lost > 0 || fleet.Closed() > 0 {
		return fmt.Errorf("bench: %d deliveries lost, %d connections closed", res.Lost, fleet.Closed())
	}
	return nil
}

// options are those of clients that subscribe, or of publishers that do not.
func (b *benchCmd) options(addr string, conns int, subscribe bool, refused context.CancelCauseFunc) load.Options {
	o := load.Options{
		URL: addr, Subprotocols: []string{wire.Subprotocol}, Conns: conns, DialsAtOnce: b.Dials, Retry: true,
		Marker: []byte(benchMarker), Ready: []byte(`"type":"welcome"`), ReadyCount: 1,
	}
	if b.Token != "" {
		o.Header = http.Header{"Authorization": {"Bearer " + b.Token}}
	}
	o.Say = func(i int) []string {
		say := []string{`{"type":"hello","protocol":1}`}
		if subscribe {
			for k := range b.PerConn {
				say = append(say, fmt.Sprintf(`{"type":"subscribe","sid":"%d","channel":"%s"}`, k, b.channel(i*b.PerConn+k)))
			}
		}
		return say
	}
	if subscribe {
		o.Ready, o.ReadyCount = []byte(`"type":"subscribed"`), b.PerConn
	}
	o.OnFrame = func(payload []byte) string {
		if bytes.Contains(payload, []byte(`"type":"refused"`)) {
			refused(refusal(payload))
		}
		return ""
	}
	return o
}

// errRefused means that the server refused what the load needs.
var errRefused = errors.New("the server refused")

// refusal is what a refused message says, for people.
func refusal(payload []byte) error {
	var r wire.Reply
	if err := json.Unmarshal(payload, &r); err != nil {
		return fmt.Errorf("%w: %s", errRefused, payload)
	}
	return fmt.Errorf("%w: %s %s: %s: %s. %s", errRefused, r.Re, r.Channel, r.Code, r.Cause, r.Fix)
}

// publishFunc sends one message.
type publishFunc func(ctx context.Context, publisher int, channel, data string) error

// perPublisher is the rate that one publishing connection keeps to, below the usual budget of 64 frames a second.
const perPublisher = 50

// publisher publishes over HTTP if there is a key, else over connections of its own.
func (b *benchCmd) publisher(ctx context.Context, base *url.URL, refused context.CancelCauseFunc) (publishFunc, int, func(), error) {
	if b.Key != "" {
		n := b.Publishers
		if n == 0 {
			n = 16
		}
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n, MaxConnsPerHost: n}, Timeout: 30 * time.Second}
		return func(ctx context.Context, _ int, channel, data string) error {
			return b.post(ctx, client, "http://"+base.Host+"/v1/channels/"+channel+"/messages", data)
		}, n, client.CloseIdleConnections, nil
	}
	n := b.Publishers
	if n == 0 {
		n = int(b.Rate/perPublisher) + 1
	}
	fleet, err := load.Dial(ctx, b.options(base.String(), n, false, refused))
	if err != nil {
		return nil, 0, nil, fmt.Errorf("bench: publishers: %w", err)
	}
	return func(_ context.Context, p int, channel, data string) error {
		return fleet.Send(p, `{"type":"publish","channel":"`+channel+`","data":`+data+`}`)
	}, n, fleet.Close, nil
}

func (b *benchCmd) post(ctx context.Context, client *http.Client, address, data string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(`{"data":`+data+`}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+b.Key)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return err
}

// watch prints a line of progress each second until stop.
func (b *benchCmd) watch(ctx context.Context, f *load.Fleet, w io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		start, last := time.Now(), uint64(0)
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(w, "\r\033[K")
				return
			case <-tick.C:
				n := f.Delivered()
				fmt.Fprintf(w, "\r\033[K%3.0f s  %d delivered  %d/s  p99 %s", time.Since(start).Seconds(), n, n-last, round(f.Latency.Quantile(0.99)))
				last = n
			}
		}
	}()
	return func() { cancel(); <-done }
}

func (b *benchCmd) table(w io.Writer, r load.Result, f *load.Fleet, setUp time.Duration, before, connected, after processUse) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("connections", "%d in %s (%.0f a second), %d closed since", b.Conns, round(setUp), float64(b.Conns)/setUp.Seconds(), f.Closed())
	row("channels", "%d, %d subscribers each", b.Channels, b.Conns*b.PerConn/b.Channels)
	row("published", "%d messages of %d bytes in %s", r.Published, b.Size, round(r.Elapsed))
	row("delivered", "%d of %d (%.0f a second)", r.Delivered, r.Expected, r.PerSecond())
	row("lost", "%d", r.Lost)
	row("out of order", "%d", r.Disorder)
	row("latency p50", "%s", round(r.P50))
	row("latency p99", "%s", round(r.P99))
	if before.ok && after.ok {
		row("server CPU", "%.2f µs a delivery, %.0f µs a connection", (after.cpu-connected.cpu)*1e6/max(1, float64(r.Delivered)), (connected.cpu-before.cpu)*1e6/float64(b.Conns))
		row("server RSS", "%.1f MiB, %.0f bytes a connection", after.rss/(1<<20), (connected.rss-before.rss)/float64(b.Conns))
	}
	_ = t.Flush()
}

func round(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

// processMetrics reads what the server says of its own process.
type processMetrics struct{ url string }

type processUse struct {
	ok       bool
	cpu, rss float64 // seconds, bytes
}

func (p *processMetrics) read(ctx context.Context) (u processUse) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return u
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return u
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(io.LimitReader(resp.Body, 1<<20))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case "process_cpu_seconds_total":
			u.cpu, _ = strconv.ParseFloat(value, 64)
			u.ok = true
		case "process_resident_memory_bytes":
			u.rss, _ = strconv.ParseFloat(value, 64)
		}
	}
	return u
}
