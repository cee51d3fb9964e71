package object

import "slices"

// channel is a generation of a name. All of it, and of its subscriptions, is guarded by the instance's lock.
type channel struct {
	name  string
	subs  []*subscription // in the order in which they came
	tail  *message        // empty: the next one to be published
	bytes int             // of all messages so far
	count int             // of them
}

// message is a place in a channel's queue. Each subscription holds the place that it reads next, and the places behind all of them are garbage.
type message struct {
	text   string
	next   *message // nil in the tail
	unread int      // subscriptions that have not read it
}

// messageOverhead is what a message costs beside its text, about.
const messageOverhead = 64

// forget counts that one subscription less has m to read.
func (h *Host) forget(m *message) {
	if m.unread--; m.unread == 0 {
		h.held.Add(-int64(len(m.text) + messageOverhead))
	}
}

// The reasons of a subscription that was cut off, beside Host.backlog.
const (
	backlogMessages = "backlog over 65536 messages"
	backlogHost     = "backlog of all subscriptions over its bound"
)

type subscription struct {
	channel *channel
	at      *message // the next to read
	bytes   int      // of the channel's, those before at
	count   int      // of messages, likewise
	start   int      // channel.count at its beginning
	peeked  int      // the number of the last message that Peek has given
	wake    chan struct{}

	over   bool   // nothing follows but what is queued
	reason string // of the end
	told   bool   // Wait has returned the end
}

// take returns what Wait has to say, or false if there is nothing.
func (s *subscription) take(h *Host) (Status, string, bool) {
	switch m := s.at; {
	case m.next != nil:
		s.at = m.next
		s.bytes += len(m.text)
		s.count++
		h.forget(m)
		return Message, m.text, true
	case s.over:
		s.told = true
		return Ended, s.reason, true
	}
	return TimedOut, "", false
}

// number is that of the last message before at: they count from 1.
func (s *subscription) number() int { return s.count - s.start }

// peek returns what Peek has to say, or false if there is nothing.
func (s *subscription) peek(h *Host, after int) (p Peeked, ok bool) {
	for s.number() < after && s.at.next != nil {
		s.take(h)
	}
	bytes := 0
	for m := s.at; m.next != nil && len(p.Texts) < PeekMessages && bytes < PeekBytes; m = m.next {
		p.Texts = append(p.Texts, m.text)
		bytes += len(m.text)
	}
	if p.Texts != nil {
		s.peeked = max(s.peeked, s.number()+len(p.Texts))
		return p, true
	}
	p.Status, p.Reason, ok = s.take(h)
	return p, ok
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
func (s *subscription) drop(h *Host) {
	for ; s.at.next != nil; s.at = s.at.next {
		h.forget(s.at)
	}
	s.at = &message{}
}

// overflow returns why a subscription has more to read than it may, or "". The newest message of its channel is among it.
func (s *subscription) overflow(h *Host) string {
	unread := s.channel.count - s.count
	switch {
	case s.channel.bytes-s.bytes > h.opts.MaxBacklog:
		return h.backlog
	case unread > MaxBacklogMessages:
		return backlogMessages
	case unread > 1 && h.held.Load() > h.opts.MaxBacklogBytes:
		return backlogHost
	}
	return ""
}

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
	s := &subscription{channel: c, at: c.tail, bytes: c.bytes, count: c.count, start: c.count}
	c.subs = append(c.subs, s)
	h.subscriptions.Add(1)
	return s, nil
}

func (o *instance) publish(h *Host, name, text string) (delivered int) {
	c := o.channels[name]
	if c == nil {
		return 0
	}
	*c.tail = message{text: text, next: &message{}, unread: len(c.subs)}
	c.tail = c.tail.next
	c.bytes += len(text)
	c.count++
	h.held.Add(int64(len(text) + messageOverhead))
	kept := c.subs[:0]
	for _, s := range c.subs {
		if reason := s.overflow(h); reason != "" {
			s.drop(h)
			s.end(h, reason)
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
	s.drop(h)
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
