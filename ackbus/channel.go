package ackbus

import (
	"slices"
	"sync"
)

// Channel is a one-to-many transport of messages: what one of its users posts, the others get. It must be safe for concurrent use.
type Channel interface {
	// Post hands one message to the transport. It does not wait for receivers. Nobody changes message afterwards.
	Post(message []byte) error
	// Listen calls receive for each message of the others, in the order of each poster, until stop is called; a call that runs then may still end after it.
	// Receive must not block, nor send on the bus that posts here: it may be called while that bus is sending. It may keep message but not change it. It may be called before Listen or Post have returned.
	Listen(receive func(message []byte)) (stop func(), err error)
}

// Local is a one-to-many channel within a process. The zero value is ready to use.
type Local struct {
	mu        sync.RWMutex
	listeners []*listener // replaced, never changed
}

type listener struct {
	of      *member
	receive func([]byte)
}

// Join returns a new user of the channel.
func (l *Local) Join() Channel { return &member{l} }

type member struct{ local *Local }

// Post calls the other users' listeners.
func (m *member) Post(message []byte) error {
	m.local.mu.RLock()
	listeners := m.local.listeners
	m.local.mu.RUnlock()
	for _, l := range listeners {
		if l.of != m {
			l.receive(message)
		}
	}
	return nil
}

func (m *member) Listen(receive func(message []byte)) (stop func(), err error) {
	l := &listener{m, receive}
	m.change(func(old []*listener) []*listener { return append(slices.Clip(old), l) })
	return func() {
		m.change(func(old []*listener) []*listener {
			return slices.DeleteFunc(slices.Clone(old), func(other *listener) bool { return other == l })
		})
	}, nil
}

func (m *member) change(f func([]*listener) []*listener) {
	m.local.mu.Lock()
	defer m.local.mu.Unlock()
	m.local.listeners = f(m.local.listeners)
}
