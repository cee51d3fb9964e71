package object

import "slices"

// channel is a generation of a name. All of it, and of its subscriptions, is guarded by the instance's lock.
type channel struct {
	name    string
	subs    []*subscription // in the order in which they came
	tail    *message        // empty: the next one to be published
	written int             // cost of all messages so far
}

// message is a place in a channel's queue. Each subscription holds the place that it reads next, and the places behind all of them are garbage.
type message struct {
	text string
	next *message // nil in the tail
}

// cost is what a text adds to a backlog: also empty ones must not wait without bound.
func cost(text string) int { return max(1, len(text)) }

type subscription struct {
	channel *channel
	at      *message // the next to read
	read    int      // channel.written where it reads
	wake    chan struct{}

	over   bool   // nothing follows but what is queued
	reason string // of the end
	told   bool   // Wait has returned the end
}

// take returns what Wait has to say, or false if there is nothing.
func (s *subscription) take() (Status, string, bool) {
	switch {
	case s.at.next != nil:
		text := s.at.text
		s.at = s.at.next
		s.read += cost(text)
		return Message, text, true
	case s.over:
		s.told = true
		return Ended, s.reason, true
	}
	return 0, "", false
}

// waking returns a channel that is closed when there may be something to take.
func (s *subscription) waking() <-chan struct{} {
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake
}

func (s *subscription) notify() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// end ends a subscription whose place in the channel is given up by the caller. What is queued stays.
func (s *subscription) end(h *Host, reason string) {
	s.over, s.reason = true, reason
	h.subscriptions.Add(-1)
	s.notify()
}

// drop forgets what is queued.
func (s *subscription) drop() { s.at = &message{} }

func (o *instance) subscribe(h *Host, name string) (*subscription, error) {
	c := o.channels[name]
	if c == nil {
		if len(o.channels) >= h.opts.MaxChannels {
			return nil, limited(ErrChannels, h.opts.MaxChannels)
		}
		c = &channel{name: name, tail: &message{}}
		if o.channels == nil {
			o.channels = map[string]*channel{}
		}
		o.channels[name] = c
	}
	if len(c.subs) >= h.opts.MaxSubscriptions {
		return nil, limited(ErrSubscriptions, h.opts.MaxSubscriptions)
	}
	s := &subscription{channel: c, at: c.tail, read: c.written}
	c.subs = append(c.subs, s)
	h.subscriptions.Add(1)
	return s, nil
}

func (o *instance) publish(h *Host, name, text string) (delivered int) {
	c := o.channels[name]
	if c == nil {
		return 0
	}
	c.tail.text, c.tail.next = text, &message{}
	c.tail = c.tail.next
	c.written += cost(text)
	kept := c.subs[:0]
	for _, s := range c.subs {
		if c.written-s.read > h.opts.MaxBacklog {
			s.drop()
			s.end(h, h.backlog)
			h.cut.Add(1)
			continue
		}
		kept = append(kept, s)
		s.notify()
	}
	clear(c.subs[len(kept):])
	c.subs = kept
	o.dropUnused(c)
	h.published.Add(1)
	h.delivered.Add(uint64(len(kept)))
	return len(kept)
}

func (o *instance) close(h *Host, name, reason string) (closed int) {
	c := o.channels[name]
	if c == nil {
		return 0
	}
	for _, s := range c.subs {
		s.end(h, reason)
	}
	closed = len(c.subs)
	c.subs = nil
	o.dropUnused(c)
	return closed
}

// cancel ends a subscription that was not seen to end before.
func (o *instance) cancel(h *Host, s *subscription) {
	if s.told {
		return
	}
	s.drop()
	if s.over { // closed or cut off, and nobody has heard
		s.reason = cancelled
		s.notify()
		return
	}
	c := s.channel
	i := slices.Index(c.subs, s)
	c.subs = slices.Delete(c.subs, i, i+1)
	o.dropUnused(c)
	s.end(h, cancelled)
}

func (o *instance) dropUnused(c *channel) {
	if len(c.subs) == 0 {
		delete(o.channels, c.name)
	}
}
