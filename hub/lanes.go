package hub

import (
	"runtime/debug"
	"sync"
)

// pool runs tasks on at most max goroutines, which exist only while there is work.
type pool struct {
	max int

	mu      sync.Mutex // guards below
	ready   []*lane    // lanes with a task, in the order in which they became ready; bounded by the connections' own bounds
	running int
	idle    *sync.Cond // signalled when running falls to zero
}

// lane is a queue of tasks that run one after the other. It exists only while it holds work.
type lane struct {
	set   *laneSet
	key   string
	tasks []func() // guarded by set.conn.mu; the first one is running
}

// laneSet is a connection's lanes. It is guarded by the connection's lock, and absent while there are none.
type laneSet struct {
	conn    *Conn
	lanes   map[string]*lane
	pending int
}

// turn is how many tasks of one lane run before another lane gets its goroutine.
const turn = 16

// Go runs task on the hub's pool, after the earlier tasks of the same lane of this connection and beside those of others. It reports false, and does not run the task, if
// [Options.MaxTasksPerConn] tasks wait already or the connection is closing.
func (c *Conn) Go(key string, task func()) bool {
	c.mu.Lock()
	if c.closing != nil || c.lanes != nil && c.lanes.pending >= c.hub.opts.MaxTasksPerConn {
		c.mu.Unlock()
		return false
	}
	if c.lanes == nil {
		c.lanes = &laneSet{conn: c, lanes: make(map[string]*lane, 1)}
	}
	c.lanes.pending++
	l := c.lanes.lanes[key]
	if l != nil {
		l.tasks = append(l.tasks, task)
		c.mu.Unlock()
		return true
	}
	l = &lane{set: c.lanes, key: key, tasks: []func(){task}}
	c.lanes.lanes[key] = l
	c.mu.Unlock()
	c.hub.pool.submit(l)
	return true
}

func (p *pool) submit(l *lane) {
	p.mu.Lock()
	p.ready = append(p.ready, l)
	start := p.running < p.max
	if start {
		p.running++
	}
	p.mu.Unlock()
	if start {
		go p.run()
	}
}

func (p *pool) run() {
	for {
		p.mu.Lock()
		if len(p.ready) == 0 {
			p.running--
			p.ready = nil
			if p.running == 0 {
				p.idle.Broadcast()
			}
			p.mu.Unlock()
			return
		}
		l := p.ready[0]
		p.ready[0] = nil
		p.ready = p.ready[1:]
		p.mu.Unlock()
		if l.run() {
			p.mu.Lock()
			p.ready = append(p.ready, l)
			p.mu.Unlock()
		}
	}
}

// wait returns when no task runs.
func (p *pool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.idle.Wait()
	}
}

// run runs up to a turn of tasks and reports whether some are left.
func (l *lane) run() bool {
	c := l.set.conn
	c.mu.Lock()
	task := l.tasks[0]
	c.mu.Unlock()
	for i := 0; ; i++ {
		c.guard(task)
		c.mu.Lock()
		l.tasks[0] = nil
		l.tasks = l.tasks[1:]
		l.set.pending--
		if len(l.tasks) == 0 {
			delete(l.set.lanes, l.key)
			if l.set.pending == 0 {
				c.lanes = nil
			}
			closing := c.closing != nil
			c.mu.Unlock()
			if closing {
				c.finish()
			}
			return false
		}
		task = l.tasks[0]
		c.mu.Unlock()
		if i == turn {
			return true
		}
	}
}

// guard runs user code. A panic costs this connection and no more.
func (c *Conn) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			c.hub.stats.panics.Add(1)
			c.hub.opts.Logger.Error("panic in a connection's handler", "connection", c.id, "panic", r, "stack", string(debug.Stack()))
			c.Close(1011, "internal error")
		}
	}()
	f()
}

// finish tells the handler that the connection has ended, once, when nothing else is left to do. It is called after each of those things.
func (c *Conn) finish() {
	c.mu.Lock()
	if c.lanes != nil || c.handling || c.handler == nil || c.closing == nil || !c.closing.left || c.closing.told {
		c.mu.Unlock()
		return
	}
	c.closing.told = true
	reason := c.closing.reason
	// A lane of its own, so that the pool's bound holds for the callback too.
	c.lanes = &laneSet{conn: c, lanes: make(map[string]*lane, 1), pending: 1}
	l := &lane{set: c.lanes, tasks: []func(){func() {
		defer c.hub.ended(c)
		c.handler.Closed(c, reason)
	}}}
	c.lanes.lanes[""] = l
	c.mu.Unlock()
	c.hub.pool.submit(l)
}
