package live

import "sync"

// history is the log of an entry: its version and the patches retained behind it. Its mutex is the entry's second: it guards the window too, of which only the entry's lane is the writer.
type history struct {
	logMu    sync.Mutex
	win      *window // nil before the first read
	version  uint64
	epoch    string
	frames   []Frame // up to version, without a gap
	retained int     // bytes of frames and of snap
	snap     []byte  // the snapshot of version snapAt, if it was asked for
	snapAt   uint64

	snapMu sync.Mutex // held while a snapshot is encoded, so that it is encoded once; before logMu
}

// retainLocked appends a patch, within the bounds.
func (en *Entry) retainLocked(f Frame) {
	o := &en.e.opts
	en.dropSnapLocked()
	en.frames = append(en.frames, f)
	en.chargeLocked(len(f.Payload))
	for len(en.frames) > 0 && (len(en.frames) > o.RingFrames || en.retained > o.RingBytes || en.e.retained.Load() > int64(o.RetainBytes)) {
		en.chargeLocked(-len(en.frames[0].Payload))
		en.frames[0] = Frame{}
		en.frames = en.frames[1:]
	}
}

func (en *Entry) chargeLocked(n int) {
	en.retained += n
	en.e.retained.Add(int64(n))
}

func (en *Entry) dropSnapLocked() {
	en.chargeLocked(-len(en.snap))
	en.snap = nil
}

// forgetLocked gives back everything that is retained.
func (en *Entry) forgetLocked() {
	en.chargeLocked(-en.retained)
	en.frames, en.snap = nil, nil
}

func (en *Entry) since(after uint64, limit int) ([]Frame, bool) {
	en.logMu.Lock()
	defer en.logMu.Unlock()
	n := uint64(len(en.frames))
	if after > en.version || en.version-after > n {
		return nil, false
	}
	next := en.frames[n-(en.version-after):]
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
		return Frame{version, en.snap, true}
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
	return Frame{version, payload, true}
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
