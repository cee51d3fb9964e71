package live

import "sync"

// history is the log of an entry: its version and the patches retained behind it. Its mutex is the entry's second: it guards the window too, of which only the entry's lane is the writer.
type history struct {
	logMu    sync.Mutex
	win      *window // nil before the first read
	version  uint64
	retained int         // bytes of frames, snap and turned
	frames   fifo[Frame] // up to version, without a gap
	snap     []byte      // the snapshot of version snapAt, if it was asked for
	// The frame of version turnedAt that [Entry.Delta] was asked for last.
	turned                       []byte
	snapAt, turnedAt, turnedFrom uint64
	epoch                        string

	snapMu sync.Mutex // held while a snapshot or delta is made, so that it is made once; before the table's and logMu
}

// retainLocked appends a patch, within the bounds.
func (en *Entry) retainLocked(f Frame) {
	o := &en.e.opts
	en.dropSnapLocked()
	all, more, n := en.e.retained.Load(), len(f.Payload), en.frames.len()
	fits := func() bool {
		return n < o.RingFrames && en.retained+more <= o.RingBytes && all+int64(more) <= int64(o.RetainBytes)
	}
	for ; n > 0 && !fits(); n-- {
		more -= len(en.frames.pop().Payload)
	}
	if fits() {
		en.frames.push(f)
	} else {
		more -= len(f.Payload)
	}
	if more != 0 {
		en.chargeLocked(more)
	}
}

func (en *Entry) chargeLocked(n int) {
	en.retained += n
	en.e.retained.Add(int64(n))
}

func (en *Entry) dropSnapLocked() {
	if en.snap != nil || en.turned != nil {
		en.chargeLocked(-len(en.snap) - len(en.turned))
		en.snap, en.turned = nil, nil
	}
}

// forgetLocked gives back everything that is retained.
func (en *Entry) forgetLocked() {
	en.chargeLocked(-en.retained)
	en.frames, en.snap, en.turned = fifo[Frame]{}, nil, nil
}

func (en *Entry) since(after uint64, limit int) ([]Frame, bool) {
	en.logMu.Lock()
	defer en.logMu.Unlock()
	n := uint64(en.frames.len())
	if after > en.version || en.version-after > n {
		return nil, false
	}
	next := en.frames.list()[n-(en.version-after):]
	if limit > 0 && len(next) > limit {
		next = next[:limit]
	}
	return append([]Frame(nil), next...), true
}

func (en *Entry) snapshot() Frame {
	en.snapMu.Lock()
	defer en.snapMu.Unlock()
	en.logMu.Lock()
	version, epoch, win := en.version, en.epoch, en.win
	if win == nil {
		en.logMu.Unlock()
		return Frame{Version: version, Snapshot: true}
	}
	if en.snap != nil && en.snapAt == version {
		defer en.logMu.Unlock()
		return Frame{Version: version, Payload: en.snap, Snapshot: true}
	}
	rows, sum := append([]slot(nil), win.slots[:win.shown()]...), win.sum
	en.logMu.Unlock()
	size := 256
	for i := range rows {
		size += len(rows[i].img.object()) + 1
	}
	payload := appendSnapshot(make([]byte, 0, size), en.id, version, epoch, win.q.Table, rows, sum)
	en.logMu.Lock()
	defer en.logMu.Unlock()
	if en.version == version && !en.dead.Load() && en.e.retained.Load()+int64(len(payload)) <= int64(en.e.opts.RetainBytes) {
		en.dropSnapLocked()
		en.snap, en.snapAt = payload, version
		en.chargeLocked(len(payload))
	}
	return Frame{Version: version, Payload: payload, Snapshot: true}
}

func (en *Entry) epochNow() string {
	en.logMu.Lock()
	defer en.logMu.Unlock()
	return en.epoch
}

func (en *Entry) versionNow() uint64 {
	en.logMu.Lock()
	defer en.logMu.Unlock()
	return en.version
}
