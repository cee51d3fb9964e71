package tidewire_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/feed"
)

// follows subscribes to the board of each list, and returns their qids.
func (c *client) follows(lists ...string) (qids []string) {
	c.t.Helper()
	for _, l := range lists {
		qids = append(qids, c.query("sid-"+l, "board", fmt.Sprintf(`{"list":%q}`, l), "").QID)
		c.want("snapshot")
	}
	return qids
}

// S47: a commit that changes two lists of a connection is told to be whole behind its patches; one that changes a single list is not numbered, and who has one live query is told nothing.
func TestS47_ACommitIsToldToBeWhole(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	s := startBoard(t, tidewire.Options{}, db, board(tidewire.Public))
	both, one := s.connect(), s.connect()
	both.follows("a", "b")
	one.follows("a")
	take := func(c *client) (m liveMessage) {
		t.Helper()
		m = c.readAny()
		if m.Type != "patch" {
			t.Fatalf("%+v", m)
		}
		return m
	}
	for i := range 3 {
		db.Commit(card(1, "a", fmt.Sprint("a", i), ""), card(2, "b", fmt.Sprint("b", i), ""))
		first, second := take(both), take(both)
		if first.Commit == 0 || first.Commit != second.Commit || first.QID == second.QID {
			t.Fatalf("%+v, then %+v", first, second)
		}
		if m := both.readAny(); m.Type != "settled" || m.Commit != first.Commit {
			t.Fatalf("%+v after the patches of %d", m, first.Commit)
		}
		if m := take(one); m.Commit != first.Commit { // one encoding for all
			t.Fatalf("%+v", m)
		}
		db.Commit(card(1, "a", fmt.Sprint("again", i), ""))
		if m := take(both); m.Commit != 0 {
			t.Fatalf("%+v", m)
		}
		if m := take(one); m.Commit != 0 { // nothing was said in between
			t.Fatalf("%+v", m)
		}
	}
	both.send(`{"type":"unsubscribe","sid":"sid-b"}`)
	both.want("unsubscribed")
	db.Commit(card(1, "a", "x", ""), card(2, "b", "y", ""))
	db.Commit(card(1, "a", "z", ""))
	if first, second := take(both), take(both); first.Commit == 0 || second.Commit != 0 {
		t.Fatalf("%+v, then %+v", first, second)
	}
}

// S47: whatever commits overlap, each is settled once, behind all its patches.
func TestS47_EveryCommitIsSettledOnce(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	db := cardsDB(t)
	s := startBoard(t, tidewire.Options{}, db, board(tidewire.Public))
	c := s.connect()
	lists := []string{"a", "b", "c", "d"}
	c.follows(lists...)
	s.connect().follows(lists[:2]...)
	for round := range 60 {
		open, settled, want := map[uint64]int{}, map[uint64]bool{}, 0
		for i := range 10 {
			var writes []feed.Write
			for k, l := range lists {
				if rng.IntN(3) == 0 {
					writes = append(writes, card(int64(k), l, fmt.Sprint(round, " ", i), ""))
				}
			}
			if len(writes) > 0 {
				db.Commit(writes...)
			}
			want += len(writes)
		}
		for patches := 0; patches < want || len(open) > 0; {
			switch m := c.readAny(); {
			case m.Type == "settled":
				if open[m.Commit] < 2 {
					t.Fatalf("seed %d: commit %d is settled after %d patches", seed, m.Commit, open[m.Commit])
				}
				delete(open, m.Commit)
				settled[m.Commit] = true
			case m.Type != "patch" || settled[m.Commit]:
				t.Fatalf("seed %d: %+v", seed, m)
			default:
				if patches++; m.Commit != 0 {
					open[m.Commit]++
				}
			}
		}
	}
}

// S47, S20: who does not read gets the newest rows of all its live queries, and is not closed for what it was told of commits.
func TestS47_S20_ASlowSubscriberOfSeveralQueriesEndsCurrent(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	s := startBoard(t, tidewire.Options{Limits: tidewire.Limits{QueueMessages: 64, QueueBytes: 512 << 10}}, db, board(tidewire.Public))
	c := s.connect()
	qids := c.follows("a", "b")
	lists := map[string]*list{qids[0]: {version: 1}, qids[1]: {version: 1}}
	pad := strings.Repeat("x", 4000)
	const commits = 3000
	for i := range commits {
		title := fmt.Sprintf("%06d%s", i, pad)
		db.Commit(card(1, "a", title, ""), card(2, "b", title, ""))
	}
	last := fmt.Sprintf(`"title":"%06d`, commits-1)
	for !strings.Contains(lists[qids[0]].titles(), last) || !strings.Contains(lists[qids[1]].titles(), last) {
		m := c.readLive()
		lists[m.QID].apply(t, m)
	}
}
