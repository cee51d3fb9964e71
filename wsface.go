package tidewire

import (
	"net/http"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/wire"
)

// serveWS is GET /ws.
func (n *Node) serveWS(w http.ResponseWriter, r *http.Request) {
	n.problem(w, wire.Errorf(wire.CodeNotFound, "not yet"))
}

func encodeWS(wire.Publication) []byte { return nil }

// encodeSkipped tells a connection what it missed, in its dialect.
func encodeSkipped(d hub.Dialect, channel string, count uint64) []byte {
	if d == dialectNative {
		return wire.Skipped(channel, count)
	}
	return nil
}
