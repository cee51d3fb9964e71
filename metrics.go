package tidewire

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/wire"
)

// nodeStats are the totals that the hub does not keep.
type nodeStats struct {
	guardFailures   atomic.Uint64
	refreshFailures atomic.Uint64
	shed            atomic.Uint64
	rosterFrames    atomic.Uint64
	unrecovered     atomic.Uint64
	historyFailures atomic.Uint64
	live            atomic.Int64 // sessions started and not yet ended

	refused *prometheus.CounterVec
	closes  *prometheus.CounterVec

	dropNote atomic.Pointer[droppedNote]
}

func (s *nodeStats) refuse(code wire.Code) { s.refused.WithLabelValues(string(code)).Inc() }

func (s *nodeStats) closed(code uint16) {
	label := "other" // a peer may choose any code; labels are bounded
	if code >= 1000 && code <= 1015 || code >= wire.CloseServerSilent && code <= wire.CloseMoving {
		label = strconv.Itoa(int(code))
	}
	s.closes.WithLabelValues(label).Inc()
	s.live.Add(-1)
}

// Stats is a view of a node at one moment. Totals only rise.
type Stats struct {
	Node string `json:"node"`
	// Connections, Channels and Rooms are the present numbers.
	Connections int `json:"connections"`
	Channels    int `json:"channels"`
	Rooms       int `json:"rooms"`
	// Accepted and Shed count connections taken in, and sent away because of a limit.
	Accepted uint64 `json:"accepted"`
	Shed     uint64 `json:"shed"`
	// Published counts publications to channels with a subscriber, Queued the deliveries they became, Written the frames given to the kernel.
	Published uint64 `json:"published"`
	Queued    uint64 `json:"queued"`
	Written   uint64 `json:"written"`
	// Dropped counts deliveries missed by subscribers that were too slow, Conflated those replaced by a newer one of the same key.
	Dropped   uint64 `json:"dropped"`
	Conflated uint64 `json:"conflated"`
	// CatchUps counts the times that a slow subscriber was moved to the history, Replayed the messages that subscribers got from it, Unrecovered the positions that it did not continue,
	// SlowAcks the late acknowledgements, HistoryFailures the failures of its store.
	CatchUps        uint64 `json:"catchUps"`
	Replayed        uint64 `json:"replayed"`
	Unrecovered     uint64 `json:"unrecovered"`
	SlowAcks        uint64 `json:"slowAcks"`
	HistoryFailures uint64 `json:"historyFailures"`
	// SlowCloses, DeadPeers and Panics count connections ended for these reasons.
	SlowCloses uint64 `json:"slowCloses"`
	DeadPeers  uint64 `json:"deadPeers"`
	Panics     uint64 `json:"panics"`
	// GuardFailures and RefreshFailures count guards and refreshes that could not decide.
	GuardFailures   uint64 `json:"guardFailures"`
	RefreshFailures uint64 `json:"refreshFailures"`
}

// Stats returns the node's numbers.
func (n *Node) Stats() Stats {
	h := n.hub.Stats()
	n.rooms.mu.Lock()
	rooms := len(n.rooms.m)
	n.rooms.mu.Unlock()
	return Stats{
		Node: n.opts.Name, Connections: h.Conns, Channels: h.Channels, Rooms: rooms,
		Accepted: h.Accepted, Shed: n.stats.shed.Load(),
		Published: h.Published, Queued: h.Queued, Written: h.Written,
		Dropped: h.Dropped, Conflated: h.Conflated,
		CatchUps: h.CatchUps, Replayed: h.Replayed, Unrecovered: n.stats.unrecovered.Load(), SlowAcks: h.SlowAcks, HistoryFailures: n.stats.historyFailures.Load(),
		SlowCloses: h.SlowCloses, DeadPeers: h.PongTimeouts + h.WriteTimeouts, Panics: h.Panics,
		GuardFailures: n.stats.guardFailures.Load(), RefreshFailures: n.stats.refreshFailures.Load(),
	}
}

// Metrics are the node's Prometheus metrics, without those of the process.
func (n *Node) Metrics() prometheus.Gatherer { return n.registry }

func (n *Node) initMetrics() {
	reg := prometheus.NewRegistry()
	n.registry = reg
	n.stats.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidewire_refused_total", Help: "Commands and requests refused, by error code.",
	}, []string{"code"})
	n.stats.closes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidewire_closed_total", Help: "Connections ended, by close code.",
	}, []string{"code"})
	reg.MustRegister(n.stats.refused, n.stats.closes, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	gauge := func(name, help string, f func(hub.Stats) int) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f(n.hub.Stats())) }))
	}
	counter := func(name, help string, f func(hub.Stats) uint64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(f(n.hub.Stats())) }))
	}
	gauge("tidewire_connections", "Open connections.", func(s hub.Stats) int { return s.Conns })
	gauge("tidewire_channels", "Channels with a subscriber.", func(s hub.Stats) int { return s.Channels })
	counter("tidewire_connections_accepted_total", "Connections accepted.", func(s hub.Stats) uint64 { return s.Accepted })
	counter("tidewire_connections_shed_total", "Connections sent away by the accept budget or the connection limit.", func(hub.Stats) uint64 { return n.stats.shed.Load() })
	counter("tidewire_messages_received_total", "Messages from clients.", func(s hub.Stats) uint64 { return s.Received })
	counter("tidewire_publications_total", "Publications to channels with a subscriber.", func(s hub.Stats) uint64 { return s.Published })
	counter("tidewire_encodings_total", "Encodings of publications.", func(s hub.Stats) uint64 { return s.Encoded })
	counter("tidewire_deliveries_queued_total", "Publications put into connections' queues.", func(s hub.Stats) uint64 { return s.Queued })
	counter("tidewire_frames_written_total", "Frames given to the kernel.", func(s hub.Stats) uint64 { return s.Written })
	counter("tidewire_bytes_written_total", "Bytes given to the kernel.", func(s hub.Stats) uint64 { return s.WrittenBytes })
	counter("tidewire_writes_total", "System calls that wrote frames.", func(s hub.Stats) uint64 { return s.Writes })
	counter("tidewire_channel_frames_dropped_total", "Publications that a connection missed because its queue was full.", func(s hub.Stats) uint64 { return s.Dropped })
	counter("tidewire_channel_frames_conflated_total", "Publications replaced in a queue by a newer one of the same key.", func(s hub.Stats) uint64 { return s.Conflated })
	counter("tidewire_catch_ups_total", "Times that a slow subscriber was moved to the history.", func(s hub.Stats) uint64 { return s.CatchUps })
	counter("tidewire_log_gaps_total", "Publications found missing on this node and read from the history.", func(s hub.Stats) uint64 { return s.Gaps })
	counter("tidewire_replayed_total", "Publications delivered from the history.", func(s hub.Stats) uint64 { return s.Replayed })
	counter("tidewire_unrecovered_total", "Positions that the history did not continue.", func(hub.Stats) uint64 { return n.stats.unrecovered.Load() })
	counter("tidewire_slow_acks_total", "Times that a subscriber's acknowledgement was late.", func(s hub.Stats) uint64 { return s.SlowAcks })
	counter("tidewire_history_failures_total", "Failures of the history's store.", func(hub.Stats) uint64 { return n.stats.historyFailures.Load() })
	counter("tidewire_slow_closes_total", "Connections closed because they were too slow.", func(s hub.Stats) uint64 { return s.SlowCloses })
	counter("tidewire_dead_peers_total", "Connections closed because the peer was silent or took nothing.", func(s hub.Stats) uint64 { return s.PongTimeouts + s.WriteTimeouts })
	counter("tidewire_panics_total", "Panics contained.", func(s hub.Stats) uint64 { return s.Panics })
	counter("tidewire_guard_failures_total", "Guards that could not decide.", func(hub.Stats) uint64 { return n.stats.guardFailures.Load() })
	counter("tidewire_refresh_failures_total", "Grant refreshes that could not decide.", func(hub.Stats) uint64 { return n.stats.refreshFailures.Load() })
	counter("tidewire_roster_frames_total", "Roster differences published.", func(hub.Stats) uint64 { return n.stats.rosterFrames.Load() })
	if e := n.queries.engine; e != nil {
		n.queryMetrics(func(name, help string, f func(live.Stats) float64) {
			reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return f(e.Stats()) }))
		}, func(name, help string, f func(live.Stats) uint64) {
			reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(f(e.Stats())) }))
		})
	}
}

// serveMetrics is GET /metrics.
func (n *Node) serveMetrics(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// droppedNote is what is to be logged of dropped frames.
type droppedNote struct {
	channel string
	missed  uint64
}

// onDrop notes that subscribers missed a message. It may be called under locks, so it does not log.
func (n *Node) onDrop(channel string, missed uint64) {
	n.stats.dropNote.Store(&droppedNote{channel, missed})
}

// logDropped logs the newest of the drops since it was last called: the counters have them all.
func (n *Node) logDropped() {
	if d := n.stats.dropNote.Swap(nil); d != nil {
		n.log.Warn("frames dropped: subscribers are too slow", "channel", d.channel, "dropped", d.missed, "total", n.hub.Stats().Dropped)
	}
}
