package live

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tidewire/tidewire/query"
)

// TestS15_AnyWindowFollowsAnyOther applies the patch between two random windows as a client does.
func TestS15_AnyWindowFollowsAnyOther(t *testing.T) {
	t.Parallel()
	rng := random(t)
	q, err := query.Compile(query.Definition{Name: "q", From: "items", Order: "loc"}, items("items"))
	if err != nil {
		t.Fatal(err)
	}
	some := func() (out []*image) {
		for _, id := range rng.Perm(10)[:rng.IntN(11)] {
			out = append(out, newImage(q, item(int64(id), 0, int64(rng.IntN(2)), "t")))
		}
		return out
	}
	for range 20_000 {
		from, to := newWindow(q, some(), true, nil), newWindow(q, some(), true, nil)
		ops := from.succeed(to)
		list := slices.Clone(from.slots)
		for _, o := range ops {
			r := o.key
			if o.img != nil {
				r = o.img.row
			}
			i := slices.IndexFunc(list, func(s slot) bool { return s.img.row[0] == r[0] })
			if i >= 0 {
				list = slices.Delete(list, i, i+1)
			} else if o.img == nil {
				t.Fatalf("del of a row that is not there")
			}
			if o.img != nil {
				list = slices.Insert(list, o.at, slot{img: o.img})
			}
		}
		show := func(slots []slot) (out string) {
			for _, s := range slots {
				out += fmt.Sprint(s.img.row[0], "=", s.img.row[2], " ")
			}
			return out
		}
		if got, want := show(list), show(to.slots); got != want {
			t.Fatalf("from %s: %s, want %s", show(from.slots), got, want)
		}
		if len(ops) > len(from.slots)+len(to.slots) {
			t.Fatalf("%d steps from %s to %s", len(ops), show(from.slots), show(to.slots))
		}
	}
}

// TestS48_TheSumIsThatOfTheRowsShown compares the sum that is kept with one from nothing, over random transactions.
func TestS48_TheSumIsThatOfTheRowsShown(t *testing.T) {
	t.Parallel()
	rng := random(t)
	q, err := query.Compile(query.Definition{Name: "q", From: "items", Order: "price", Limit: 4}, items("items"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWindow(q, nil, true, nil)
	w.slack = 4 // so that it is often exhausted, and there are few rows or some more
	model := map[int64]*image{}
	for range 20_000 {
		touches := map[int64]touch{}
		for range 1 + rng.IntN(4) {
			r := randomItem(rng, int64(rng.IntN(60)))
			img := newImage(q, r)
			touches[r[0].Int()] = touch{img.key, pick(rng, img, nil)}
		}
		var list []touch
		for id, x := range touches {
			list = append(list, x)
			if model[id] = x.img; x.img == nil {
				delete(model, id)
			}
		}
		w.apply(list, make([]op, rng.IntN(5)))
		sum, bytes := uint64(0), 0
		for i, s := range w.slots {
			bytes += s.img.size
			if s.shown != (i < w.limit) || s.fresh || w.get(s.img.key) != s.img {
				t.Fatalf("slot %d: %+v", i, s)
			}
			if s.shown {
				sum += q.Projection.Checksum(q.Projection.AppendJSON(nil, s.img.row))
			}
		}
		if sum != w.sum || bytes != w.bytes || w.byKey != nil && len(w.byKey) != len(w.slots) || len(w.slots) > w.limit+w.slack {
			t.Fatalf("sum %x, want %x; %d bytes, want %d; %d rows, %d keys", w.sum, sum, w.bytes, bytes, len(w.slots), len(w.byKey))
		}
		if !slices.IsSortedFunc(w.slots, func(a, b slot) int { return q.Order.Compare(a.img.row, b.img.row) }) {
			t.Fatal("out of order")
		}
		var all []*image
		for _, img := range model {
			all = append(all, img)
		}
		slices.SortFunc(all, func(a, b *image) int { return q.Order.Compare(a.row, b.row) })
		want := all[:min(len(all), w.limit)]
		if w.short() {
			want = want[:len(w.slots)]
		}
		for i, img := range want {
			if w.shown() != len(want) || w.slots[i].img != img {
				t.Fatalf("%d rows are shown of %d", w.shown(), len(want))
			}
		}
		if w.low() { // it is read again
			if n := w.limit + w.slack; len(all) >= n {
				w = newWindow(q, all[:n], false, all[n-1].row)
			} else {
				w = newWindow(q, all, true, nil)
			}
			w.slack = pick(rng, 1, 4, 12)
		}
	}
}
