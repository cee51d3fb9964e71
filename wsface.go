package tidewire

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/wire"
	"github.com/tidewire/tidewire/ws"
)

// The go-ws face serves the JSON protocol of package ws on the node's own hub and channels, under its authenticator, guards and limits.

func (n *Node) initWS() {
	cfg := ws.HubConfig{
		CheckOrigin:     func(*http.Request) bool { return true }, // admit has looked
		OnSubscribe:     n.subscribeWS,
		OnUnsubscribe:   n.unsubscribedWS,
		OnDisconnect:    n.disconnectedWS,
		FramesPerSecond: n.opts.Limits.FramesPerSecond,
		FrameBurst:      n.opts.Limits.FrameBurst,
		Logger:          n.log,
	}
	if n.opts.Authenticate != nil {
		cfg.Authenticator = ws.AuthenticatorFunc(n.authenticateWS)
	}
	n.ws = ws.On(n.hub, dialectWS, cfg)
}

// serveWS is GET /ws.
func (n *Node) serveWS(w http.ResponseWriter, r *http.Request) {
	if err := hub.CheckHandshake(r); err != nil {
		n.refuseHandshake(w, err)
		return
	}
	grant, err := n.admit(r)
	if err != nil {
		n.problem(w, err)
		return
	}
	n.ws.HandleWebSocket(w, r.WithContext(context.WithValue(r.Context(), grantKey{}, grant)))
}

type grantKey struct{}

// authenticateWS gives what admit has decided.
func (n *Node) authenticateWS(r *http.Request) ws.AuthResult {
	g, _ := r.Context().Value(grantKey{}).(*Grant)
	if g == nil {
		return ws.AuthResult{Error: auth.ErrDenied}
	}
	return ws.AuthResult{Valid: true, UserID: g.Actor.ID, Claims: g.Actor.Claims, ExpiresAt: g.ExpiresAt}
}

// wsPlaces is what a go-ws client holds for its channels.
type wsPlaces struct {
	tenant string // empty if it has none

	mu       sync.Mutex // guards channels
	channels map[string]*wsPlace
}

// wsPlace is what one subscription holds: a place in the tenant's count, and the channel's log, if there are such.
type wsPlace struct {
	counted bool
	log     *history
}

func (n *Node) placesWS(c *ws.Client) *wsPlaces {
	if v, ok := n.wsHeld.Load(c); ok {
		return v.(*wsPlaces)
	}
	held := &wsPlaces{channels: map[string]*wsPlace{}}
	if n.opts.Limits.SubscriptionsPerTenant > 0 {
		held.tenant = n.opts.Tenant(Actor{ID: c.UserID, Claims: c.Claims})
	}
	v, _ := n.wsHeld.LoadOrStore(c, held)
	return v.(*wsPlaces)
}

// subscribeWS decides about a subscription and takes what it holds. The calls for one channel of a client come one after the other.
func (n *Node) subscribeWS(c *ws.Client, channel string) error {
	held := n.placesWS(c)
	fresh, err := n.takeWS(held, channel)
	if err != nil {
		return err
	}
	rule, err := n.allowWS(c, channel)
	if err == nil && fresh && rule.opts.History != nil {
		var log *history
		if log, err = n.histories.acquire(context.Background(), channel, rule.opts.Policy); err != nil {
			err = n.historyError(channel, err)
		}
		held.mu.Lock()
		if place := held.channels[channel]; place != nil {
			place.log = log
		} else { // it has gone
			n.histories.release(log)
		}
		held.mu.Unlock()
	}
	if err != nil && fresh {
		n.unsubscribedWS(c, channel)
	}
	return err
}

// takeWS takes a place, and reports whether there was none yet.
func (n *Node) takeWS(held *wsPlaces, channel string) (fresh bool, err error) {
	held.mu.Lock()
	defer held.mu.Unlock()
	if held.channels[channel] != nil {
		return false, nil
	}
	if held.tenant != "" && !n.tenants.take(held.tenant, n.opts.Limits.SubscriptionsPerTenant) {
		return false, wire.Errorf(wire.CodeSubscriptionLimit, "the tenant has as many subscriptions as it may")
	}
	held.channels[channel] = &wsPlace{counted: held.tenant != ""}
	return true, nil
}

func (n *Node) leaveWS(held *wsPlaces, place *wsPlace) {
	if place.counted {
		n.tenants.release(held.tenant)
	}
	n.histories.release(place.log)
}

func (n *Node) unsubscribedWS(c *ws.Client, channel string) {
	v, ok := n.wsHeld.Load(c)
	if !ok {
		return
	}
	held := v.(*wsPlaces)
	held.mu.Lock()
	defer held.mu.Unlock()
	if place := held.channels[channel]; place != nil {
		delete(held.channels, channel)
		n.leaveWS(held, place)
	}
}

func (n *Node) disconnectedWS(c *ws.Client, _ ws.Reason) {
	v, ok := n.wsHeld.LoadAndDelete(c)
	if !ok {
		return
	}
	held := v.(*wsPlaces)
	held.mu.Lock()
	defer held.mu.Unlock()
	for _, place := range held.channels {
		n.leaveWS(held, place)
	}
	clear(held.channels)
}

// allowWS asks the guard of a channel for a go-ws client.
func (n *Node) allowWS(c *ws.Client, channel string) (*rule, error) {
	if !wire.ValidChannel(channel) {
		return nil, wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	return n.allow(context.Background(), Actor{ID: c.UserID, Claims: c.Claims}, channel, ActionSubscribe)
}

// recheckWS asks the guards of all channels of an actor's go-ws clients.
func (n *Node) recheckWS(actor string) {
	for c := range n.ws.AllClients() {
		if c.UserID != actor {
			continue
		}
		for _, channel := range c.Subscriptions() {
			if _, err := n.allowWS(c, channel); errors.Is(err, &wire.Error{Code: wire.CodeTopicForbidden}) {
				n.ws.Unsubscribe(c, channel)
			}
		}
	}
}

// encodeWS is a publication as a go-ws client gets it.
func encodeWS(p wire.Publication) []byte {
	b, err := ws.Encode(p.Channel, ws.Message{Type: ws.TypeEvent, Data: json.RawMessage(p.Data)})
	if err != nil { // the data was decoded from JSON
		return nil
	}
	return b
}

// encodeSkipped tells a connection what it missed, in its dialect. A go-ws client has no message for it.
func encodeSkipped(d hub.Dialect, channel string, count uint64) []byte {
	if d == dialectNative {
		return wire.Skipped(channel, count)
	}
	return nil
}
