package postgres_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/postgres"
)

// Messages of pgoutput.

func beginMessage(final uint64, xid uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, final)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, 0), xid)
}

func commitMessage(start, end uint64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, start)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, end), 0)
}

func relationMessage() []byte {
	b := append([]byte{'R', 0, 0, 0, 1}, "public\x00t\x00f\x00\x02\x01id\x00"...)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, 23), math.MaxUint32)
	b = append(b, "\x01body\x00"...)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, 25), math.MaxUint32)
}

func tuple(b []byte, cells ...string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(cells)))
	for _, c := range cells {
		if c == "n" || c == "u" {
			b = append(b, c...)
			continue
		}
		b = append(binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(c))), c...)
	}
	return b
}

func insertMessage(cells ...string) []byte {
	return tuple([]byte{'I', 0, 0, 0, 1, 'N'}, cells...)
}

func takeAll(t *testing.T, take func([]byte) error, messages ...[]byte) {
	t.Helper()
	for _, m := range messages {
		if err := take(m); err != nil {
			t.Fatalf("%q: %v", m, err)
		}
	}
}

// S25: what the server sends again after a reconnect is dropped by its position.
func TestS25_RedeliveryIsDropped(t *testing.T) {
	t.Parallel()
	s := &sink{}
	take := postgres.Stream(s, 1000)
	takeAll(t, take,
		beginMessage(100, 7), relationMessage(), insertMessage("1", "a"), commitMessage(100, 120),
		beginMessage(100, 7), insertMessage("1", "a"), commitMessage(100, 120),
		beginMessage(120, 6), insertMessage("2", "n"), commitMessage(120, 130),
		beginMessage(130, 9), commitMessage(130, 140)) // empty
	expect(t, s.tx(t), "insert public.t -> [1 a]")
	expect(t, s.tx(t), "insert public.t -> [2 NULL]")
	if n := len(s.rest()); n != 0 {
		t.Errorf("%d more", n)
	}
}

func TestP29_LimitCountsEachTransaction(t *testing.T) {
	t.Parallel()
	s := &sink{}
	take := postgres.Stream(s, 100)
	takeAll(t, take, beginMessage(10, 7), relationMessage(), insertMessage("1", strings.Repeat("a", 60)), commitMessage(10, 20))
	takeAll(t, take, beginMessage(20, 8), insertMessage("2", strings.Repeat("a", 60)), insertMessage("3", strings.Repeat("a", 60)), commitMessage(20, 30))
	takeAll(t, take, beginMessage(30, 9), insertMessage("4", "a"), commitMessage(30, 40))
	s.tx(t)
	if r := s.reset(t); r.at != "000000000000001E" {
		t.Errorf("reset at %s", r.at)
	}
	expect(t, s.tx(t), "insert public.t -> [4 a]")
}

func TestS22_MessagesOutOfPlace(t *testing.T) {
	t.Parallel()
	for name, messages := range map[string][][]byte{
		"change outside":    {relationMessage(), insertMessage("1", "a")},
		"commit outside":    {commitMessage(1, 2)},
		"begin twice":       {beginMessage(1, 2), beginMessage(1, 2)},
		"unknown relation":  {beginMessage(1, 2), insertMessage("1", "a")},
		"too few columns":   {beginMessage(1, 2), relationMessage(), insertMessage("1")},
		"too many columns":  {beginMessage(1, 2), relationMessage(), insertMessage("1", "2", "3")},
		"more than a tuple": {beginMessage(1, 2), relationMessage(), append(insertMessage("1", "2"), 0)},
		"length too large":  {beginMessage(1, 2), relationMessage(), []byte("I\x00\x00\x00\x01N\x00\x02t\x7f\xff\xff\xff1")},
		"negative length":   {beginMessage(1, 2), relationMessage(), []byte("I\x00\x00\x00\x01N\x00\x02t\xff\xff\xff\xff1")},
		"nothing":           {{}},
		"a new message":     {[]byte("S\x00")},
	} {
		take := postgres.Stream(&sink{}, 1000)
		var err error
		for _, m := range messages {
			err = take(m)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add(append(append(append(append([]byte{21}, beginMessage(1, 2)...), byte(len(relationMessage()))), relationMessage()...), append([]byte{byte(len(insertMessage("1", "a")))}, insertMessage("1", "a")...)...))
	for _, m := range [][]byte{relationMessage(), commitMessage(1, 2), insertMessage("u", "n"), []byte("T\x00\x00\x00\x01\x00\x00\x00\x00\x01"), tuple([]byte{'D', 0, 0, 0, 1, 'K'}, "1", "n")} {
		f.Add(append([]byte{byte(len(m))}, m...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &sink{}
		take := postgres.Stream(s, 500)
		_ = take(relationMessage())
		_ = take(beginMessage(1, 2))
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1)
			m := data[1 : 1+n]
			data = data[1+n:]
			if postgres.Fits(m) && take(m) != nil {
				return
			}
		}
		for _, e := range s.events {
			if e.tx == nil {
				continue
			}
			for _, c := range e.tx.Changes {
				if c.Old != nil && len(c.Old) != 2 || c.New != nil && len(c.New) != 2 || (c.New == nil) != (c.Op == feed.Delete || c.Op == feed.Truncate) {
					t.Errorf("%v", show(e.tx))
				}
			}
		}
	})
}

// S14: 32-bit ids are those nearest to a recent one, also over the end of an epoch.
func TestS14_WideTransactionIDs(t *testing.T) {
	t.Parallel()
	for range 10000 {
		recent := rand.Uint64N(1 << 40)
		id := uint64(max(3, int64(recent)+rand.Int64N(1<<32-2)-(1<<31-1)))
		if got := postgres.Widen(uint32(id), recent); got != id {
			t.Fatalf("widen(%d, %d) = %d, want %d", uint32(id), recent, got, id)
		}
	}
}

func TestS14_Fence(t *testing.T) {
	t.Parallel()
	f, err := postgres.ParseFence("10:20:10,15")
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[uint64]bool{3: true, 9: true, 10: false, 11: true, 15: false, 19: true, 20: false, 1 << 40: false} {
		if got := f.Includes(&feed.Tx{ID: id}); got != want {
			t.Errorf("Includes(%d) = %v", id, got)
		}
	}
	for _, s := range []string{"", "1:2", "a:2:", "1:2:x", "1:2:3:4"} {
		if _, err := postgres.ParseFence(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

// The set of ids against a plain one.
func TestP46_RememberedIDs(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		var set postgres.XIDs
		model := map[uint64]bool{}
		at := random.Uint64N(1 << 33)
		top := uint64(0)
		for range 300 {
			switch random.IntN(50) {
			case 0:
				at += random.Uint64N(3 * postgres.XIDSpan)
			default:
				at += random.Uint64N(50)
			}
			id := at - min(at, random.Uint64N(100))
			set.Add(id)
			model[id] = true
			top = max(top, id)
			for old := range model {
				if old+postgres.XIDSpan <= top {
					delete(model, old)
				}
			}
			xmax := at - min(at, random.Uint64N(40))
			var running []string
			hidden := false
			for x := xmax - min(xmax, 60); x < xmax; x++ {
				if random.IntN(10) == 0 {
					running = append(running, fmt.Sprint(x))
					hidden = hidden || model[x]
				}
			}
			for x := range model {
				hidden = hidden || x >= xmax
			}
			f, err := postgres.ParseFence(fmt.Sprintf("%d:%d:%s", xmax-min(xmax, 60), xmax, strings.Join(running, ",")))
			if err != nil {
				t.Fatal(err)
			}
			if x, got := set.HiddenFrom(f); got != hidden {
				t.Fatalf("hidden: %v (%d), want %v", got, x, hidden)
			}
		}
	}
}
