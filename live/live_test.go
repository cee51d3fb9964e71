package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

var (
	top   = query.Definition{Name: "top", From: "items", Order: "price DESC", Limit: 50}
	three = query.Definition{Name: "three", From: "items", Order: "price", Limit: 3}
	byOrg = query.Definition{Name: "byOrg", From: "items", Where: "org = $org", Columns: []string{"title"}}
	all   = query.Definition{Name: "all", From: "items"}
)

func (b *bed) fill(n int64) {
	var writes []feed.Write
	for i := range n {
		writes = append(writes, put(item(i+1, i%2, i+1, "t")))
	}
	b.db.Commit(writes...)
}

func (c *client) expect(ids, patches string) {
	c.b.t.Helper()
	synctest.Wait()
	if got := c.ids(); got != ids {
		c.b.t.Errorf("shows %s, want %s", got, ids)
	}
	if patches != "" {
		if got := c.tail(strings.Count(patches, "|") + 1); got != patches {
			c.b.t.Errorf("patches %q, want %q", got, patches)
		}
	}
	c.check(nil)
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

func TestU1_ADeleteInAFullWindowIsToldAtOnceAndReplaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, top)
		b.fill(60)
		b.start()
		c := b.subscribe(b.acquire("top", ""))
		b.db.Commit(del(40))
		synctest.Wait()
		if got := c.tail(1); got != "-40 +10@49" {
			t.Errorf("patch %q", got)
		}
		c.check(nil)
		c.leave()
	})
}

func TestS17_P31_AWindowIsNeverShortWhileThereAreRows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, three)
		b.fill(200)
		b.start()
		c := b.subscribe(b.acquire("three", ""))
		block := make(chan struct{})
		b.db.during = func(context.Context) error { <-block; return nil }
		for i := range int64(19) {
			if i == 5 { // it must not be taken for what follows the last row known
				b.db.Commit(put(item(500, 0, 150, "t")))
			} // the window and all of its slack, before the read that fills it comes back
			b.db.Commit(del(i + 1))
			synctest.Wait()
		}
		if got := c.ids(); got != "18 19" { // the delete was told; what follows is shown with what takes its place
			t.Errorf("with every known row deleted it shows %s", got)
		}
		close(block)
		c.expect("20 21 22", "+20@2 | -18 +21@2 | -19 +22@2")
		before := b.e.Stats().Selects
		for i := range int64(100) {
			b.db.Commit(del(i + 20))
			synctest.Wait()
			c.check(nil)
		}
		if n := b.e.Stats().Selects - before; n > 100/12+1 {
			t.Errorf("%d reads for 100 rows that left", n)
		}
		c.leave()
	})
}

func TestS17_RowsMoveEnterAndLeave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, three)
		b.fill(5)
		b.start()
		c := b.subscribe(b.acquire("three", ""))
		c.expect("1 2 3", "")
		b.db.Commit(put(item(1, 0, 9, "t")))
		c.expect("2 3 4", "-1 +4@2") // out of the window
		b.db.Commit(put(item(4, 0, 0, "t")))
		c.expect("4 2 3", "+4@0") // to another place
		b.db.Commit(put(item(9, 0, 2, "t")))
		c.expect("4 2 9", "-3 +9@2") // a tie is broken by the key
		b.db.Commit(put(item(2, 0, 2, "new")))
		c.expect("4 2 9", "+2@1") // in its place
		b.db.Commit(put(item(2, 0, 2, "new")), put(item(100, 0, 100, "t")))
		c.expect("4 2 9", "+2@1") // nothing is shown of this
		b.db.Commit(put(item(9, 0, -2, "t")), put(item(2, 0, -3, "t")), del(4))
		c.expect("2 9 3", "-4 -9 -2 +2@0 +9@1 +3@2")
		c.leave()
	})
}

func TestU2_TheHeldSetIsTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all)
		b.fill(600)
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		b.db.Commit(del(590))
		synctest.Wait()
		if got := c.tail(1); got != "-590" {
			t.Errorf("patch %q", got)
		}
		c.check(nil)
		c.leave()
	})
}

func TestU3_WhatIsCommittedDuringTheReadIsInTheResultOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all)
		b.fill(3)
		var stage atomic.Int32
		b.db.before = func(context.Context) error {
			if stage.Add(1) == 1 {
				b.db.Commit(put(item(4, 0, 0, "before the snapshot")))
			}
			return nil
		}
		b.db.during = func(context.Context) error {
			if stage.Add(1) == 2 {
				b.db.Commit(put(item(5, 0, 0, "behind the snapshot")), del(1))
			}
			return nil
		}
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		c.expect("2 3 4 5", "")
		d := b.subscribe(b.acquire("all", "{}")) // and for those who come later
		d.expect("2 3 4 5", "")
		if n := b.e.Stats().Selects; n != 1 {
			t.Errorf("%d reads", n)
		}
		c.leave()
		d.leave()
	})
}

func TestS13_S14_TheWindowOnlyMovesForwards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all)
		b.fill(1)
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		var late []*feed.Tx
		b.db.deliver = func(tx *feed.Tx) *feed.Tx { // the feed is behind what reads see
			late = append(late, tx)
			return &feed.Tx{}
		}
		for i := range int64(4) {
			b.db.Commit(put(item(1, 0, 10+i, "t")))
		}
		block := make(chan struct{})
		b.db.during = func(context.Context) error { <-block; return nil }
		feed := sink{b.e}
		c.en.rereadAfter(0)
		synctest.Wait()
		feed.Commit(late[0])
		c.expectPrice("10") // it is shown while the read is under way
		close(block)
		c.expectPrice("13")
		frames := c.frames
		for _, tx := range late[1:] {
			feed.Commit(tx)
			c.expectPrice("13")
		}
		if c.frames != frames {
			t.Error("what was read came again")
		}
		c.leave()
	})
}

func (c *client) expectPrice(want string) {
	c.b.t.Helper()
	synctest.Wait()
	if got := string(c.rows[0]["price"]); got != want {
		c.b.t.Errorf("the price is %s, want %s", got, want)
	}
}

func TestS13_WhatWasReadAndNotTakenIsVoidAfterALoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		block := make(chan struct{})
		b := newBed(t, Options{Workers: 1, Publish: func(en *Entry, _ Frame) {
			if en.ident.t.def.Name == "byOrg" {
				<-block
			}
		}}, all, byOrg)
		b.start()
		c, d := b.subscribe(b.acquire("byOrg", `{"org":0}`)), b.subscribe(b.acquire("all", ""))
		b.db.Commit(put(item(1, 0, 0, "t"))) // the only worker is held up
		synctest.Wait()
		d.en.rereadAfter(0)
		synctest.Wait()
		b.db.deliver = func(*feed.Tx) *feed.Tx { return &feed.Tx{} }
		b.db.Commit(put(item(2, 0, 0, "t")))
		b.db.deliver = nil
		b.db.Lose("lost")
		close(block)
		settle()
		b.db.Commit(put(item(3, 0, 0, "t")))
		c.expect("1 2 3", "")
		d.expect("1 2 3", "")
		c.leave()
		d.leave()
	})
}

func TestU5_P10_P11_CellsThatAreNotKnownAreNotNull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, query.Definition{Name: "q", From: "items", Where: "title LIKE 'a%' AND org = 1"}, query.Definition{Name: "none", From: "items", Where: "title IS NULL"})
		b.db.Commit(put(item(1, 1, 1, "abc")), put(item(2, 1, 1, "xyz")), put(item(3, 0, 1, "abc")))
		b.start()
		c, none := b.subscribe(b.acquire("q", "")), b.subscribe(b.acquire("none", ""))
		b.db.deliver = func(tx *feed.Tx) *feed.Tx {
			for i := range tx.Changes {
				ch := &tx.Changes[i]
				old := append(row.Row(nil), ch.Old...)
				for k := range old[1:] {
					old[k+1] = row.AbsentValue()
				}
				if ch.New != nil {
					r := append(row.Row(nil), ch.New...)
					r[3] = row.AbsentValue()
					ch.New = r
				}
				ch.Old = old
			}
			return tx
		}
		b.db.Commit(put(item(1, 1, 2, "abc")))
		c.expect("1", "+1@0")
		if n := b.e.Stats().Partial; n != 1 { // none cannot know
			t.Errorf("%d entries were read again", n)
		}
		b.db.Commit(put(item(3, 1, 1, "abc"))) // enters, and only the database knows its title
		c.expect("1 3", "+3@1")
		b.db.Commit(del(1))
		c.expect("3", "-1")
		none.expect("", "")
		c.leave()
		none.leave()
	})
}

func TestU8_P16_TruncateEmptiesEveryWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, three, query.Definition{Name: "others", From: "other"})
		b.fill(40)
		b.db.Commit(feed.Write{Table: row.Name{Schema: "public", Table: "other"}, New: item(1, 1, 1, "t")})
		b.start()
		c, d, o := b.subscribe(b.acquire("all", "")), b.subscribe(b.acquire("three", "")), b.subscribe(b.acquire("others", ""))
		b.db.Commit(put(item(70, 0, 0, "t")), feed.Write{Table: itemsName}, put(item(80, 0, 0, "t")))
		c.expect("80", "")
		d.expect("80", "")
		o.expect("1", "")
		if c.frames != 2 || d.frames != 2 || o.frames != 1 {
			t.Errorf("%d, %d, %d frames", c.frames, d.frames, o.frames)
		}
		c.leave()
		d.leave()
		o.leave()
	})
}

func TestU9_ATableIsItsSchemaAndName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, query.Definition{Name: "private", From: "private.items"})
		other := items("items")
		other.Schema = "private"
		b.db.Create(other)
		b.start()
		c, d := b.subscribe(b.acquire("all", "")), b.subscribe(b.acquire("private", ""))
		b.db.Commit(feed.Write{Table: other.Name, New: item(1, 1, 1, "secret")})
		b.db.Commit(put(item(2, 1, 1, "t")))
		c.expect("2", "")
		d.expect("1", "")
		c.leave()
		d.leave()
	})
}

func TestU10_KeysOfSeveralColumns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, query.Definition{Name: "pairs", From: "pairs", Columns: []string{"n"}})
		pair := func(a int64, s string, n int64) row.Row {
			return row.Row{row.IntValue(n), row.TextValue(s), row.IntValue(a)}
		}
		name := row.Name{Schema: "public", Table: "pairs"}
		b.db.Commit(feed.Write{Table: name, New: pair(1, "x", 1)}, feed.Write{Table: name, New: pair(1, "y", 1)})
		b.start()
		c := b.subscribe(b.acquire("pairs", ""))
		if f := c.en.Snapshot(); !strings.Contains(string(f.Payload), `"key":["a","b"],"rows":[{"a":1,"b":"x","n":1},{"a":1,"b":"y","n":1}],"sum":"`) {
			t.Errorf("snapshot %s", f.Payload)
		}
		b.db.Commit(feed.Write{Table: name, Old: pair(1, "x", 0)}, feed.Write{Table: name, New: pair(0, "x", 2)})
		c.expect(`[0,"x"] [1,"y"]`, "")
		if got := string(c.patches[0].Ops[0].Del); got != `[1,"x"]` {
			t.Errorf("del %s", got)
		}
		c.leave()
	})
}

func TestU11_S47_ATransactionIsOneFrame(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, byOrg)
		b.start()
		c, d := b.subscribe(b.acquire("all", "")), b.subscribe(b.acquire("byOrg", `{"org":1}`))
		b.fill(30)
		synctest.Wait()
		var writes []feed.Write
		for i := range int64(30) {
			writes = append(writes, put(item(i+1, 1-i%2, 0, "t")), del(i+1), put(item(i+1, i%2, -1, "t")))
		}
		b.db.Commit(writes...)
		synctest.Wait()
		c.check(nil)
		d.check(nil)
		if c.frames != 3 || d.frames != 2 { // nothing that byOrg shows is another at the end
			t.Errorf("%d and %d frames", c.frames, d.frames)
		}
		c.leave()
		d.leave()
	})
}

func TestP13_P14_LeavingIsADeleteForHoldersOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, byOrg)
		b.fill(4)
		b.start()
		c, d := b.subscribe(b.acquire("byOrg", `{"org":0}`)), b.subscribe(b.acquire("byOrg", `{"org":1}`))
		b.db.Commit(put(item(1, 1, 1, "t")))
		c.expect("3", "-1")
		d.expect("1 2 4", "+1@0")
		frames := c.frames
		b.db.Commit(del(2))
		c.expect("3", "")
		if c.frames != frames {
			t.Error("an entry was told of a row that it never showed")
		}
		b.db.Commit(put(item(3, 0, 99, "t"))) // price is not shown
		c.expect("3", "")
		if c.frames != frames {
			t.Error("a change of a column that is not read was published")
		}
		c.leave()
		d.leave()
	})
}

func TestP15_AChangeOfTheKeyIsOnePatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all)
		b.fill(2)
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		b.db.Commit(del(1), put(item(7, 0, 1, "t")))
		c.expect("2 7", "-1 +7@1")
		c.leave()
	})
}

func TestP17_AnAlteredTableIsReadAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, query.Definition{Name: "notes", From: "items", Where: "note = ''"})
		b.fill(2)
		b.start()
		c, d := b.subscribe(b.acquire("all", "")), b.subscribe(b.acquire("notes", ""))
		epoch, dead := c.epoch, d.en
		altered := items("items")
		altered.Columns[6].Name = "remark"
		b.db.Create(altered) // with no rows
		b.db.Commit(put(item(5, 1, 1, "t")))
		settle()
		c.expect("5", "")
		if c.epoch == epoch || c.snaps != 2 || c.rows[0]["remark"] == nil {
			t.Errorf("epoch %s after %s, %d snapshots, %s", c.epoch, epoch, c.snaps, c.rows)
		}
		b.mu.Lock()
		err := b.lost[dead]
		b.mu.Unlock()
		if !errors.Is(err, ErrRefused) || !errors.Is(err, query.ErrDefinition) {
			t.Errorf("the query without its column: %v", err)
		}
		if _, err := b.e.Acquire(t.Context(), "notes", nil, nil); !errors.Is(err, ErrRefused) {
			t.Errorf("and when it is asked for again: %v", err)
		}
		b.db.Commit(put(item(6, 1, 1, "t")))
		c.expect("5 6", "+6@1")
		c.leave()
		d.leave()
	})
}

func TestP20_ADroppedTableEndsItsEntries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all)
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		b.db.table = func(row.Name) (*row.Table, error) { return nil, feed.ErrNoTable }
		b.db.Lose("dropped")
		settle()
		b.mu.Lock()
		err := b.lost[c.en]
		b.mu.Unlock()
		if !errors.Is(err, ErrRefused) || !errors.Is(err, feed.ErrNoTable) {
			t.Errorf("failed with %v", err)
		}
		c.leave()
		b.db.table = nil
		c = b.subscribe(b.acquire("all", ""))
		b.db.Commit(put(item(1, 1, 1, "t")))
		c.expect("1", "+1@0")
		c.leave()
	})
}

func TestS28_P32_ReturningClientsGetPatchesOrASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{RingFrames: 4}, all)
		b.start()
		en := b.acquire("all", "")
		for i := range int64(6) {
			b.db.Commit(put(item(i, 0, 0, "t")))
		}
		synctest.Wait()
		for after, want := range map[uint64]int{7: 0, 6: 1, 3: 4, 2: -1, 8: -1, 1 << 63: -1} {
			frames, ok := en.Since(after, 0)
			if ok != (want >= 0) || len(frames) != max(0, want) {
				t.Errorf("since %d: %d frames, %v", after, len(frames), ok)
			}
			for i, f := range frames {
				if f.Version != after+uint64(i)+1 {
					t.Errorf("since %d: frame %d", after, f.Version)
				}
			}
		}
		if frames, ok := en.Since(3, 2); !ok || len(frames) != 2 || frames[0].Version != 4 {
			t.Errorf("a page: %v", frames)
		}
		x, y := en.Snapshot(), en.Snapshot()
		if x.Version != 7 || &x.Payload[0] != &y.Payload[0] {
			t.Error("a snapshot is encoded twice")
		}
		reads := b.e.Stats().Selects
		en.Release()
		time.Sleep(29 * time.Second)
		again := b.acquire("all", "")
		if again != en || b.e.Stats().Selects != reads {
			t.Error("an entry that lingers was not resumed")
		}
		again.Release()
		again.Release() // one too many
		time.Sleep(40 * time.Second)
		if b.e.Stats().Entries != 0 {
			t.Error("an entry lingers for ever")
		}
		fresh := b.acquire("all", "")
		if fresh.Epoch() == en.Epoch() {
			t.Error("a new entry has an old epoch")
		}
		fresh.Release()
	})
}

func TestS06_S28_P41_WhatIsRetainedIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{RingBytes: 4 << 10, RetainBytes: 6 << 10}, all, byOrg)
		b.start()
		a, c := b.acquire("all", ""), b.acquire("byOrg", `{"org":0}`)
		for i := range int64(100) {
			b.db.Commit(put(item(i, 0, 0, strings.Repeat("x", 200))))
			a.Snapshot()
		}
		synctest.Wait()
		if n := b.e.Stats().Retained; n > 6<<10 || n == 0 {
			t.Errorf("%d bytes are retained", n)
		}
		if _, ok := a.Since(a.Version(), 0); !ok {
			t.Error("the newest version is not reached")
		}
		b.db.Commit(put(item(1000, 0, 0, strings.Repeat("x", 9000)))) // more than all
		synctest.Wait()
		if _, ok := a.Since(a.Version()-1, 0); ok {
			t.Error("a patch larger than the ring is retained")
		}
		a.Release()
		c.Release()
		settle()
	})
}

func TestS06_Limits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{MaxEntries: 2, MaxRows: 10, MaxEntryBytes: 40 << 10}, all, byOrg)
		b.fill(8)
		b.start()
		a, c := b.acquire("byOrg", `{"org":1}`), b.acquire("byOrg", `{"org":2}`)
		if _, err := b.e.Acquire(t.Context(), "byOrg", json.RawMessage(`{"org":3}`), nil); !errors.Is(err, ErrEntries) {
			t.Errorf("a third entry: %v", err)
		}
		c.Release() // one that lingers makes room
		c = b.acquire("all", "")
		b.db.Commit(put(item(20, 0, 0, "t")), put(item(21, 0, 0, "t")))
		synctest.Wait()
		b.db.Commit(put(item(22, 0, 0, "t")))
		synctest.Wait()
		b.mu.Lock()
		err := b.lost[c]
		b.mu.Unlock()
		if !errors.Is(err, ErrRows) {
			t.Errorf("an entry that grew: %v", err)
		}
		if _, err := b.e.Acquire(t.Context(), "all", nil, nil); !errors.Is(err, ErrRows) {
			t.Errorf("a result too large: %v", err)
		}
		b.db.Commit(put(item(3, 3, 0, strings.Repeat("x", 41<<10))))
		if _, err := b.e.Acquire(t.Context(), "byOrg", json.RawMessage(`{"org":3}`), nil); !errors.Is(err, ErrRows) {
			t.Errorf("a row too large: %v", err)
		}
		a.Release()
		c.Release()
	})
}

func TestS06_AReadThatDoesNotComeBackTimesOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, byOrg)
		b.fill(1)
		b.start()
		b.db.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := b.e.Acquire(t.Context(), "all", nil, nil); !errors.Is(err, ErrTimeout) {
					t.Errorf("acquire: %v", err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.e.Acquire(ctx, "all", nil, nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) {
			t.Errorf("a caller's own deadline: %v", err)
		}
		wg.Wait()
		if n := b.e.Stats().Entries; n != 0 {
			t.Errorf("%d entries", n)
		}
		synctest.Wait()
		b.db.before = nil
		b.acquire("all", "").Release()
	})
}

func TestS12_ErrorsOfAcquire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, byOrg)
		b.start()
		if err := b.e.Declare(query.Definition{Name: "bad", From: "nowhere"}); err != nil {
			t.Fatal(err)
		}
		if err := b.e.Declare(byOrg); !errors.Is(err, query.ErrDefinition) {
			t.Errorf("declared twice: %v", err)
		}
		for name, want := range map[string]error{"none": ErrUnknown, "bad": ErrRefused, "byOrg": query.ErrInput} {
			if _, err := b.e.Acquire(t.Context(), name, json.RawMessage(`{"x":1}`), nil); !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		b.db.before = func(context.Context) error { return errInjected }
		if _, err := b.e.Acquire(t.Context(), "byOrg", json.RawMessage(`{"org":1}`), nil); !errors.Is(err, ErrRead) || !errors.Is(err, errInjected) {
			t.Errorf("a read that fails: %v", err)
		}
		b.db.before = nil
		b.acquire("byOrg", `{"org":1}`).Release()
	})
}

func TestS50_RunRefusesWhatTheDatabaseRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, query.Definition{Name: "typo", From: "items", Where: "orgg = 1"}, query.Definition{Name: "lost", From: "nowhere"})
		err := b.e.Run(t.Context())
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "typo") || !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("Run: %v", err)
		}
		if _, err := b.e.Acquire(t.Context(), "all", nil, nil); !errors.Is(err, ErrStopped) {
			t.Errorf("after Run: %v", err)
		}
	})
}

func TestS50_ClassesAreShown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, three, query.Definition{Name: "local", From: "items", Order: "loc"})
		b.start()
		en := b.acquire("all", "")
		got := ""
		for _, q := range b.e.Queries() {
			got += fmt.Sprintln(q.Name, q.Table, q.Class, q.Entries, q.Reason != "")
		}
		if want := "all public.items routed 1 false\nlocal public.items re-run 0 true\nthree public.items windowed 0 false\n"; got != want {
			t.Errorf("queries:\n%swant\n%s", got, want)
		}
		en.Release()
	})
}

func TestS12_EntriesAreSharedByWhatTheInputMeans(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, byOrg, query.Definition{Name: "mine", From: "items", Visible: "org = $actor.org"})
		b.start()
		x, y, z := b.acquire("byOrg", `{"org":1}`), b.acquire("byOrg", ` { "org" : 1 }`), b.acquire("byOrg", `{"org":2}`)
		if x != y || x == z || x.ID() == z.ID() || len(x.ID()) != 16 {
			t.Errorf("entries %s %s %s", x.ID(), y.ID(), z.ID())
		}
		var actors []*Entry
		for _, actor := range []string{`{"org":1,"name":"a"}`, `{"name":"b","org":1}`, `{"org":2}`} {
			en, err := b.e.Acquire(t.Context(), "mine", nil, json.RawMessage(actor))
			if err != nil {
				t.Fatal(err)
			}
			actors = append(actors, en)
		}
		if actors[0] != actors[1] || actors[0] == actors[2] {
			t.Error("actors with the same attributes do not share, or others do")
		}
		for _, en := range append(actors, x, y, z) {
			en.Release()
		}
	})
}

func TestS12_ACollisionOfHashesDoesNotShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, byOrg)
		b.fill(4)
		b.start()
		x := b.acquire("byOrg", `{"org":1}`)
		b.e.mu.Lock()
		in, err := x.plan.q.Input(json.RawMessage(`{"org":0}`), nil)
		b.e.ids[fmt.Sprintf("%016x", in.Hash)] = x
		b.e.mu.Unlock()
		y := b.acquire("byOrg", `{"org":0}`)
		if err != nil || y == x || y.ID() != fmt.Sprintf("%016x-1", in.Hash) {
			t.Errorf("entry %s, %v", y.ID(), err)
		}
		c := b.subscribe(y)
		c.expect("1 3", "")
		c.leave()
		x.Release()
	})
}

func TestS13_AColdEntryIsReadOnceAndGroupsShareASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{Reads: 1}, byOrg)
		b.fill(10)
		b.start()
		b.db.before = func(context.Context) error { time.Sleep(time.Millisecond); return nil }
		var wg sync.WaitGroup
		for i := range 400 {
			wg.Go(func() {
				en, err := b.e.Acquire(t.Context(), "byOrg", json.RawMessage(fmt.Sprintf(`{"org":%d}`, i%40)), nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer en.Release()
				if en.Version() != 1 {
					t.Errorf("version %d", en.Version())
				}
			})
		}
		wg.Wait()
		if s := b.e.Stats(); s.Selects != 40 || s.Reads > 3 {
			t.Errorf("%d selects in %d reads", s.Selects, s.Reads)
		}
	})
}

func TestS18_P43_NoEntryWaitsForTheReadOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{Reads: 1, Buffer: 8}, all, byOrg)
		b.fill(2)
		b.start()
		c := b.subscribe(b.acquire("byOrg", `{"org":1}`))
		block := make(chan struct{})
		b.db.during = func(context.Context) error { <-block; return nil }
		slow := make(chan *Entry)
		go func() { slow <- b.acquire("all", "") }()
		synctest.Wait()
		for i := range int64(20) { // more than the slow one keeps
			b.db.Commit(put(item(10+i, 1, 1, "t")))
			synctest.Wait()
			if got, want := c.tail(1), fmt.Sprintf("+%d@%d", 10+i, 1+i); got != want {
				t.Errorf("patch %q, want %q", got, want)
			}
		}
		close(block)
		d := b.subscribe(<-slow)
		synctest.Wait()
		d.check(nil)
		if s := b.e.Stats(); s.Overflows != 2 || s.Selects != 3 {
			t.Errorf("%d overflows, %d selects", s.Overflows, s.Selects)
		}
		c.leave()
		d.leave()
	})
}

func TestP29_AFeedFasterThanTheLanesWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{Pending: 4, Publish: func(*Entry, Frame) { time.Sleep(time.Millisecond) }}, all)
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		for i := range int64(40) {
			b.db.Commit(put(item(i, 0, 0, "t")))
			if n := b.e.Stats().Pending; n > 5 {
				t.Fatalf("%d transactions wait", n)
			}
		}
		settle()
		c.check(nil)
		if c.frames != 41 || b.e.Stats().Held == 0 { // each commit is one frame even then
			t.Errorf("%d frames", c.frames)
		}
		c.leave()
	})
}

func TestS27_P6_ALossIsANewEpochAndASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all, three)
		b.fill(3)
		b.start()
		c, d := b.subscribe(b.acquire("all", "")), b.subscribe(b.acquire("three", ""))
		b.acquire("three", "").Release()
		b.db.Commit(put(item(9, 0, 9, "t")))
		synctest.Wait()
		epoch, version := c.epoch, c.version
		sink := sink{b.e}
		b.db.deliver = func(*feed.Tx) *feed.Tx { return &feed.Tx{} }
		b.db.Commit(del(1)) // nobody hears of it
		sink.Reset("", "lost")
		b.db.deliver = nil
		b.db.Commit(put(item(10, 0, 10, "t")))
		settle()
		c.expect("2 3 9 10", "")
		d.expect("2 3 9", "")
		if c.epoch == epoch || c.epoch != c.en.Epoch() || c.snaps != 2 || c.version <= version {
			t.Errorf("epoch %s after %s, %d snapshots, version %d after %d", c.epoch, epoch, c.snaps, c.version, version)
		}
		if _, ok := c.en.Since(version, 0); ok {
			t.Error("a position of the old epoch is good in the new one")
		}
		c.leave()
		d.leave()
	})
}

func TestS50_RerunIsReadAgainAtMostOnceInAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, query.Definition{Name: "local", From: "items", Where: "org = $org", Order: "loc", Limit: 5})
		b.fill(6)
		b.start()
		c := b.subscribe(b.acquire("local", `{"org":1}`))
		time.Sleep(time.Second)
		selects := b.e.Stats().Selects
		for i := range int64(100) {
			b.db.Commit(put(item(100+i, 0, 1, "t"))) // of no concern
		}
		settle()
		if n := b.e.Stats().Selects - selects; n != 0 {
			t.Errorf("%d reads for changes that concern others", n)
		}
		for i := range int64(100) {
			b.db.Commit(put(item(200+i, 1, 1, "t")), del(2))
			time.Sleep(time.Millisecond)
		}
		settle()
		if n := b.e.Stats().Selects - selects; n < 2 || n > 3 {
			t.Errorf("%d reads in 100 ms", n)
		}
		c.expect("4 6 200 201 202", "")
		c.leave()
	})
}

func TestS04_S05_Policies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var broken atomic.Bool
		policy := func(actor json.RawMessage, r PolicyRow) (bool, error) {
			if broken.Load() {
				panic("no idea")
			}
			v, _ := r.Value("title")
			return strings.Contains(string(actor), v.Text()), nil
		}
		b := newBed(t, Options{})
		if err := b.e.DeclareWith(query.Definition{Name: "secret", From: "items", Order: "id", Limit: 2, Columns: []string{"price"}}, policy); err != nil {
			t.Fatal(err)
		}
		for i := range int64(100) {
			b.db.Commit(put(item(i, 0, 0, map[bool]string{true: "red", false: "blue"}[i%20 == 0])))
		}
		b.start()
		get := func(actor string) *client {
			en, err := b.e.Acquire(t.Context(), "secret", nil, json.RawMessage(actor))
			if err != nil {
				t.Fatal(err)
			}
			return b.subscribe(en)
		}
		red, blue := get(`{"sees":"red"}`), get(`{"sees":"blue"}`)
		if red.ids() != "0 20" || blue.ids() != "1 2" {
			t.Errorf("red %s, blue %s", red.ids(), blue.ids())
		}
		b.db.Commit(put(item(0, 0, 0, "blue"))) // a row that leaves the policy is a delete
		synctest.Wait()
		if red.ids() != "20 40" || blue.ids() != "0 1" || red.tail(1) != "-0 +40@1" {
			t.Errorf("red %s, blue %s", red.ids(), blue.ids())
		}
		broken.Store(true)
		b.db.Commit(put(item(20, 0, 77, "red")), put(item(5, 0, 0, "red")))
		synctest.Wait()
		if red.ids() != "20 40" || string(red.rows[0]["price"]) != "0" {
			t.Errorf("a failure of the policy changed something: %s", red.ids())
		}
		if b.e.Stats().PolicyErrors == 0 {
			t.Error("a failure is not counted")
		}
		broken.Store(false)
		settle()
		if red.ids() != "5 20" || string(red.rows[1]["price"]) != "77" {
			t.Errorf("and after it is mended: %s", red.ids())
		}
		red.leave()
		blue.leave()
	})
}

// partial makes a change of which the feed knows of the old row the key alone, and of the new one not some columns.
func partial(tx *feed.Tx, unknown ...int) *feed.Tx {
	for i := range tx.Changes {
		ch := &tx.Changes[i]
		if ch.Old != nil {
			old := slices.Clone(ch.Old)
			for k := range old[1:] {
				old[k+1] = row.AbsentValue()
			}
			ch.Old = old
		}
		if ch.New != nil {
			r := slices.Clone(ch.New)
			for _, k := range unknown {
				r[k] = row.AbsentValue()
			}
			ch.New = r
		}
	}
	return tx
}

// TestS19_APatchIsAuthorizedAgainstTheWholeRow has a policy on a column that the query does not read, and changes in which the feed does not know it.
func TestS19_APatchIsAuthorizedAgainstTheWholeRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const note = 6
		var broken atomic.Bool
		policy := func(actor json.RawMessage, r PolicyRow) (bool, error) {
			for i, v := range r.Row {
				if v.Kind() == row.Absent {
					t.Errorf("the policy was asked about a row without %s", r.Table.Columns[i].Name)
				}
			}
			if broken.Load() {
				return false, errInjected
			}
			return strings.Contains(string(actor), strconv.Quote(r.Row[note].Text())), nil
		}
		b := newBed(t, Options{})
		if err := b.e.DeclareWith(query.Definition{Name: "notes", From: "items", Columns: []string{"title"}}, policy); err != nil {
			t.Fatal(err)
		}
		noted := func(id int64, title, note string) feed.Write {
			r := item(id, 0, 0, title)
			r[6] = row.TextValue(note)
			return put(r)
		}
		b.db.Commit(noted(1, "t", "red"), noted(2, "t", "blue"), noted(3, "t", "red"))
		b.start()
		get := func(sees string) *client {
			en, err := b.e.Acquire(t.Context(), "notes", nil, json.RawMessage(fmt.Sprintf(`{"sees":[%s]}`, sees)))
			if err != nil {
				t.Fatal(err)
			}
			return b.subscribe(en)
		}
		red, blue, both := get(`"red"`), get(`"blue"`), get(`"blue","red"`)
		expect := func(what string, frames int, r, bl, bo string) {
			t.Helper()
			synctest.Wait()
			for _, x := range []struct {
				c    *client
				want string
			}{{red, r}, {blue, bl}, {both, bo}} {
				if got := x.c.ids(); got != x.want {
					t.Errorf("%s: %s sees %s, want %s", what, x.c.en.actor, got, x.want)
				}
			}
			if n := red.frames + blue.frames + both.frames; n != frames {
				t.Errorf("%s: %d frames, want %d", what, n, frames)
			}
		}
		expect("at first", 3, "1 3", "2", "1 2 3")
		b.db.deliver = func(tx *feed.Tx) *feed.Tx { return partial(tx, note) }
		b.db.Commit(noted(1, "new", "red")) // what the feed does not say is known to who holds the row; others read it before they say anything
		expect("an update in part", 5, "1 3", "2", "1 2 3")
		if string(red.rows[0]["title"]) != `"new"` || string(both.rows[0]["title"]) != `"new"` {
			t.Errorf("titles %s, %s", red.rows, both.rows)
		}
		b.db.Commit(noted(4, "t", "blue")) // whose note nobody has: it is read
		settle()
		expect("an insert in part", 7, "1 3", "2 4", "1 2 3 4")
		b.db.deliver = nil
		b.db.Commit(noted(1, "new", "blue")) // leaves one policy and enters another
		expect("a change of hands", 9, "3", "1 2 4", "1 2 3 4")
		b.db.Commit(del(3)) // for those who hold it alone
		expect("a delete", 11, "", "1 2 4", "1 2 4")
		broken.Store(true)
		b.db.Commit(noted(1, "newer", "red"), noted(5, "t", "red")) // nobody can say who may see it: nothing is told, and nothing taken away
		expect("a policy that fails", 11, "", "1 2 4", "1 2 4")
		b.db.Commit(del(2)) // a row that is no more needs no policy
		expect("a delete meanwhile", 13, "", "1 4", "1 4")
		broken.Store(false)
		settle()
		expect("and when it is mended", 16, "1 5", "4", "1 4 5")
		for _, c := range []*client{red, blue, both} {
			c.leave()
		}
	})
}

// TestS21_TheCursorAdvancesWithEveryPatch: what a client has of an entry is told by the last frame alone, and leads on from there.
func TestS21_TheCursorAdvancesWithEveryPatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, three)
		b.fill(6)
		b.start()
		c := b.subscribe(b.acquire("three", ""))
		rng := rand.New(rand.NewPCG(21, 0))
		type cursor struct {
			qid, epoch string
			version    uint64
			rows       []map[string]json.RawMessage
			sum        string
		}
		at := func() cursor { return cursor{c.en.ID(), c.epoch, c.version, c.rows, c.sum()} }
		cursors := []cursor{at()}
		for range 60 {
			frames := c.frames
			b.db.Commit(put(item(int64(rng.IntN(8)), 0, int64(rng.IntN(8)), "t")))
			synctest.Wait()
			now, last := at(), cursors[len(cursors)-1]
			if now.qid != last.qid || now.epoch != last.epoch || now.version != last.version+uint64(c.frames-frames) || now.version != c.en.Version() {
				t.Fatalf("after %d frames the cursor went from %d to %d, the entry is at %d", c.frames-frames, last.version, now.version, c.en.Version())
			}
			if c.frames > frames {
				cursors = append(cursors, now)
			}
		}
		if len(cursors) < 20 {
			t.Fatalf("%d patches", len(cursors)-1)
		}
		for _, from := range cursors { // each leads to all that came later, patch by patch
			back := &client{b: b, en: c.en, epoch: from.epoch, version: from.version, rows: from.rows, key: c.key}
			frames, ok := c.en.Since(from.version, 0)
			if !ok || uint64(len(frames)) != c.version-from.version {
				t.Fatalf("since %d: %d frames, %v", from.version, len(frames), ok)
			}
			for i, f := range frames {
				back.take(f)
				if want := cursors[from.version-cursors[0].version+uint64(i)+1]; back.version != want.version || back.sum() != want.sum {
					t.Errorf("from %d the patch %d leads to %s, want %s", from.version, f.Version, back.sum(), want.sum)
				}
			}
		}
		c.leave()
	})
}

func TestU12_S48_TheSumTellsADriftedClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, all)
		b.fill(3)
		b.start()
		c := b.subscribe(b.acquire("all", ""))
		b.db.Commit(put(item(2, 0, 5, "new")))
		synctest.Wait()
		sum := c.patches[0].Sum
		if c.sum() != sum {
			t.Error("the sums differ without a drift")
		}
		c.rows[0]["title"] = json.RawMessage(`"drifted"`)
		if c.sum() == sum {
			t.Error("a drift is not seen")
		}
		c.leave()
	})
}

func TestS49_ExplainSaysWhyARowIsShownOrNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, query.Definition{Name: "q", From: "items", Where: "org = $org AND price > 1", Order: "price", Limit: 2}, query.Definition{Name: "pairs", From: "pairs"})
		if err := b.e.DeclareWith(query.Definition{Name: "p", From: "items"}, func(_ json.RawMessage, r PolicyRow) (bool, error) {
			if r.Row[0].Int() == 3 {
				return false, errInjected
			}
			return r.Row[0].Int() == 1, nil
		}); err != nil {
			t.Fatal(err)
		}
		b.fill(12)
		b.start()
		q, p, pairs := b.acquire("q", `{"org":1}`), b.acquire("p", ""), b.acquire("pairs", "")
		for _, c := range []struct {
			en   *Entry
			key  string
			want string
		}{
			{q, "4", "shown 1 [] "},
			{q, "8", "limit -1 [] "},
			{q, "99", "no row -1 [] "},
			{q, "1", "predicate -1 [org = is false price > is false] "},
			{q, "5", "predicate -1 [org = is false] "},
			{p, "1", "shown 0 [] "},
			{p, "2", "policy -1 [] "},
			{p, "3", "failure -1 [] injected"},
			{pairs, `[1,"x"]`, "no row -1 [] "},
		} {
			x, err := b.e.Explain(t.Context(), c.en, json.RawMessage(c.key))
			if got := fmt.Sprint(x.Reason, " ", x.Index, " ", x.Leaves, " ", x.Error); err != nil || got != c.want || x.Version != 1 {
				t.Errorf("%s: %s, %v, want %s", c.key, got, err, c.want)
			}
		}
		for _, key := range []string{`"a"`, `{`, ``} {
			if _, err := b.e.Explain(t.Context(), q, json.RawMessage(key)); !errors.Is(err, query.ErrInput) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if _, err := b.e.Explain(t.Context(), pairs, json.RawMessage(`[1]`)); !errors.Is(err, query.ErrInput) {
			t.Errorf("half a key: %v", err)
		}
		q.Release()
		p.Release()
		pairs.Release()
	})
}
