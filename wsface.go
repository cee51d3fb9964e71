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

// wsPlaces are the places in a tenant's count that a go-ws client holds.
type wsPlaces struct {
	tenant string

	mu       sync.Mutex // guards channels
	channels map[string]bool
}

// subscribeWS decides about a subscription, with a place in the tenant's count.
func (n *Node) subscribeWS(c *ws.Client, channel string) error {
	taken, err := n.takeWS(c, channel)
	if err == nil {
		err = n.allowWS(c, channel)
	}
	if err != nil && taken {
		n.unsubscribedWS(c, channel)
	}
	return err
}

func (n *Node) takeWS(c *ws.Client, channel string) (taken bool, err error) {
	limit := n.opts.Limits.SubscriptionsPerTenant
	if limit == 0 {
		return false, nil
	}
	tenant := n.opts.Tenant(Actor{ID: c.UserID, Claims: c.Claims})
	if tenant == "" {
		return false, nil
	}
	v, _ := n.wsHeld.LoadOrStore(c, &wsPlaces{tenant: tenant, channels: map[string]bool{}})
	held := v.(*wsPlaces)
	held.mu.Lock()
	defer held.mu.Unlock()
	if held.channels[channel] {
		return false, nil
	}
	if !n.tenants.take(tenant, limit) {
		return false, wire.Errorf(wire.CodeSubscriptionLimit, "the tenant has as many subscriptions as it may")
	}
	held.channels[channel] = true
	return true, nil
}

func (n *Node) unsubscribedWS(c *ws.Client, channel string) {
	v, ok := n.wsHeld.Load(c)
	if !ok {
		return
	}
	held := v.(*wsPlaces)
	held.mu.Lock()
	defer held.mu.Unlock()
	if held.channels[channel] {
		delete(held.channels, channel)
		n.tenants.release(held.tenant)
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
	for range held.channels {
		n.tenants.release(held.tenant)
	}
	clear(held.channels)
}

// allowWS asks the guard of a channel for a go-ws client.
func (n *Node) allowWS(c *ws.Client, channel string) error {
	if !wire.ValidChannel(channel) {
		return wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	_, err := n.allow(context.Background(), Actor{ID: c.UserID, Claims: c.Claims}, channel, ActionSubscribe)
	return err
}

// recheckWS asks the guards of all channels of an actor's go-ws clients.
func (n *Node) recheckWS(actor string) {
	for c := range n.ws.AllClients() {
		if c.UserID != actor {
			continue
		}
		for _, channel := range c.Subscriptions() {
			if errors.Is(n.allowWS(c, channel), &wire.Error{Code: wire.CodeTopicForbidden}) {
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
