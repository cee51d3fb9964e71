package live

import (
	"strconv"

	"github.com/tidewire/tidewire/row"
)

// Frame is one version of an entry's window, encoded as a JSON object of the protocol.
//
// A snapshot is the whole window:
//
//	{"type":"snapshot","qid":"8f3a…","version":7,"epoch":"k2x.1","key":["id"],"rows":[{"id":1,"title":"a"}],"sum":"00c1…"}
//
// A patch leads from the version before to its own:
//
//	{"type":"patch","qid":"8f3a…","version":8,"ops":[{"del":1},{"put":{"id":9,"title":"b"},"at":0}],"sum":"5d0e…"}
//
// key names the columns of the primary key. Rows stand in the order of the query. The ops are applied one after another to the list of rows: del takes out the row with a key, which is there; put
// takes out the row with the same key, if there is one, and then inserts its row at an index. A key is the value of the key's column, and with several columns the array of their values. sum is the
// checksum of the rows after the frame ([row.Projection.Checksum], added up modulo 2^64, 16 hex digits): it does not depend on order.
//
// # What a node does with frames
//
// It publishes each frame with its version as the offset. To a subscriber at a position (epoch, version) it sends [Entry.Since] if the epoch is [Entry.Epoch] and Since has the frames, else
// [Entry.Snapshot] with its version as the offset. A published frame may be a snapshot too (Snapshot is true): after a loss, when Epoch is another one, and instead of a patch that would be larger. It
// follows the version before like any other frame, and is delivered to those who are live like any other; nothing must be rewound, as Since does not reach back over a change of epoch.
type Frame struct {
	Version  uint64
	Payload  []byte
	Snapshot bool
	// Commit is the group of a published frame: see [Options.Settled]. Zero means none. It is not in Payload, and what [Entry.Since] returns has none.
	Commit uint64
}

// op is one step of a patch: a del when img is nil.
type op struct {
	key row.Row // of which the key's columns are written
	img *image
	at  int
}

func appendSum(dst []byte, sum uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[sum>>shift&15])
	}
	return dst
}

func appendHead(dst []byte, kind, qid string, version uint64) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","qid":"`...)
	dst = append(dst, qid...)
	dst = append(dst, `","version":`...)
	return strconv.AppendUint(dst, version, 10)
}

func appendTail(dst []byte, sum uint64) []byte {
	dst = append(dst, `],"sum":"`...)
	dst = appendSum(dst, sum)
	return append(dst, `"}`...)
}

// appendKey writes the primary key of a row.
func appendKey(dst []byte, t *row.Table, r row.Row) []byte {
	if len(t.Key) == 1 {
		c := t.Key[0]
		return row.AppendJSON(dst, t.Columns[c].Type, r[c])
	}
	for i, c := range t.Key {
		dst = append(dst, "[,"[min(i, 1)])
		dst = row.AppendJSON(dst, t.Columns[c].Type, r[c])
	}
	return append(dst, ']')
}

// patchSize is enough for a patch, but for keys that grow when they are written.
func patchSize(qid string, t *row.Table, ops []op) int {
	n := 96 + len(qid)
	for i := range ops {
		n += 24
		if img := ops[i].img; img != nil {
			n += len(img.object())
			continue
		}
		for _, c := range t.Key {
			n += 20 + len(ops[i].key[c].Text())
		}
	}
	return n
}

func appendPatch(dst []byte, qid string, version uint64, t *row.Table, ops []op, sum uint64) []byte {
	dst = appendHead(dst, "patch", qid, version)
	dst = append(dst, `,"ops":[`...)
	for i, o := range ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		if o.img == nil {
			dst = append(dst, `{"del":`...)
			dst = appendKey(dst, t, o.key)
		} else {
			dst = append(dst, `{"put":`...)
			dst = append(dst, o.img.object()...)
			dst = append(dst, `,"at":`...)
			dst = strconv.AppendInt(dst, int64(o.at), 10)
		}
		dst = append(dst, '}')
	}
	return appendTail(dst, sum)
}

func appendSnapshot(dst []byte, qid string, version uint64, epoch string, t *row.Table, rows []slot, sum uint64) []byte {
	dst = appendHead(dst, "snapshot", qid, version)
	dst = append(dst, `,"epoch":"`...)
	dst = append(dst, epoch...)
	dst = append(dst, `","key":`...)
	for i, c := range t.Key {
		dst = append(dst, "[,"[min(i, 1)])
		dst = row.AppendJSON(dst, row.Type{Kind: row.Text}, row.TextValue(t.Columns[c].Name))
	}
	dst = append(dst, `],"rows":[`...)
	for i := range rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, rows[i].img.object()...)
	}
	return appendTail(dst, sum)
}
