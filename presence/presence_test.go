package presence_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidewire/tidewire/presence"
	"github.com/tidewire/tidewire/wire"
)

// model is the naive roster: a slice of members in the order of arrival.
type model struct{ members []modelMember }

type modelMember struct {
	id       string
	data     string
	sessions []string
}

func (m *model) find(id string) int {
	for i := range m.members {
		if m.members[i].id == id {
			return i
		}
	}
	return -1
}

func (m *model) join(id, sess, data string) {
	i := m.find(id)
	if i < 0 {
		m.members = append(m.members, modelMember{id: id})
		i = len(m.members) - 1
	}
	mm := &m.members[i]
	mm.data = data
	for _, s := range mm.sessions {
		if s == sess {
			return
		}
	}
	mm.sessions = append(mm.sessions, sess)
}

func (m *model) leave(id, sess string) {
	i := m.find(id)
	if i < 0 {
		return
	}
	mm := &m.members[i]
	for j, s := range mm.sessions {
		if s == sess {
			mm.sessions = append(mm.sessions[:j:j], mm.sessions[j+1:]...)
			break
		}
	}
	if len(mm.sessions) == 0 {
		m.members = append(m.members[:i:i], m.members[i+1:]...)
	}
}

func (m *model) listed() []wire.Member {
	out := []wire.Member{}
	for _, mm := range m.members[:min(len(m.members), wire.RosterLimit)] {
		w := wire.Member{ID: mm.id, Data: json.RawMessage(mm.data), Sessions: append([]string(nil), mm.sessions[:min(len(mm.sessions), wire.SessionsListed)]...)}
		if len(mm.sessions) > wire.SessionsListed {
			w.SessionCount = len(mm.sessions)
		}
		out = append(out, w)
	}
	return out
}

// S11, P22: snapshot plus differences is the server's listed part at each version, whatever happens in between.
func TestS11_SnapshotPlusDiffsIsTheRoster(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		people := 1 + rnd.IntN(40)
		if seed%6 == 0 {
			people = 700 // past the limit
		}
		r := presence.New("room")
		var m model
		var observed []wire.Member
		version := r.Version()
		for step := range 800 {
			id := fmt.Sprintf("m%d", rnd.IntN(people))
			sess := fmt.Sprintf("%s-s%d", id, rnd.IntN(1+rnd.IntN(20)))
			switch rnd.IntN(10) {
			case 0, 1, 2, 3, 4:
				data := fmt.Sprintf(`{"n":%d}`, rnd.IntN(3))
				r.Join(id, sess, 1, json.RawMessage(data))
				m.join(id, sess, data)
			case 5, 6, 7:
				if r.Leave(id, sess, 1) {
					m.leave(id, sess)
				}
			case 8:
				data := fmt.Sprintf(`{"n":%d}`, rnd.IntN(3))
				if there, _ := r.Update(id, sess, 1, json.RawMessage(data)); there {
					m.members[m.find(id)].data = data
				}
			case 9:
				diff, _, ok := r.Publish()
				if !ok {
					if r.Version() != version {
						t.Fatalf("seed %d step %d: version moved without a difference", seed, step)
					}
					continue
				}
				if diff.Version != version+1 {
					t.Fatalf("seed %d step %d: version %d after %d", seed, step, diff.Version, version)
				}
				version = diff.Version
				observed = presence.Apply(observed, diff)
				if d := cmp.Diff(m.listed(), observed); d != "" {
					t.Fatalf("seed %d step %d version %d: observer differs (-server +observer):\n%s", seed, step, version, d)
				}
				if diff.Total != len(m.members) || r.Len() != len(m.members) {
					t.Fatalf("seed %d step %d: total %d, want %d", seed, step, diff.Total, len(m.members))
				}
				if len(diff.Joins) > wire.RosterLimit || len(diff.Leaves) > wire.RosterLimit || len(diff.Updates) > wire.RosterLimit {
					t.Fatalf("seed %d step %d: a frame beyond the limit", seed, step)
				}
				var snap wire.Roster
				if err := json.Unmarshal(r.Snapshot(1<<20), &snap); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(*snap.Snapshot, observed); d != "" {
					t.Fatalf("seed %d step %d: snapshot differs from what was followed:\n%s", seed, step, d)
				}
			}
		}
	}
}

// P22: an update is an update, never a leave and a join.
func TestS11_UpdateIsNeitherLeaveNorJoin(t *testing.T) {
	t.Parallel()
	r := presence.New("room")
	r.Join("a", "s1", 1, json.RawMessage(`1`))
	r.Publish()
	r.Update("a", "s1", 1, json.RawMessage(`2`))
	diff, _, ok := r.Publish()
	if !ok || len(diff.Joins) != 0 || len(diff.Leaves) != 0 || len(diff.Updates) != 1 || string(diff.Updates[0].Data) != "2" {
		t.Fatalf("Publish = %+v, %v; want one update", diff, ok)
	}
}

// P24: three sessions of one member are one join and, after the last, one leave.
func TestS11_SessionsOfOneMember(t *testing.T) {
	t.Parallel()
	r := presence.New("room")
	r.Join("a", "s1", 1, nil)
	if d, _, _ := r.Publish(); len(d.Joins) != 1 {
		t.Fatalf("first session: %+v", d)
	}
	r.Join("a", "s2", 2, nil)
	r.Join("a", "s3", 3, nil)
	if d, _, _ := r.Publish(); len(d.Joins) != 0 || len(d.Updates) != 1 || len(d.Updates[0].Sessions) != 3 {
		t.Fatalf("more sessions: %+v", d)
	}
	r.Leave("a", "s1", 1)
	r.Leave("a", "s2", 2)
	if d, _, _ := r.Publish(); len(d.Leaves) != 0 || len(d.Updates) != 1 {
		t.Fatalf("fewer sessions: %+v", d)
	}
	r.Leave("a", "s3", 3)
	if d, _, _ := r.Publish(); len(d.Leaves) != 1 || d.Total != 0 {
		t.Fatalf("last session: %+v", d)
	}
}

// P19, P23: a session that came back belongs to its new owner; the end of the old one is not seen.
func TestS11_TakenOverSessionOutlivesItsOldOwner(t *testing.T) {
	t.Parallel()
	r := presence.New("room")
	r.Join("a", "s1", "old", json.RawMessage(`1`))
	r.Publish()
	if r.Join("a", "s1", "new", json.RawMessage(`1`)) {
		t.Error("coming back is visible")
	}
	if r.Leave("a", "s1", "old") {
		t.Error("the old owner ended the session")
	}
	if _, _, ok := r.Publish(); ok {
		t.Error("others see something")
	}
	if there, _ := r.Update("a", "s1", "old", json.RawMessage(`2`)); there {
		t.Error("the old owner still speaks for the session")
	}
}

// S11: states are in the snapshot, and leave with their session.
func TestS11_StateInSnapshot(t *testing.T) {
	t.Parallel()
	r := presence.New("room")
	r.Join("a", "s1", 1, nil)
	r.Publish()
	if there, known := r.SetState("a", "s1", 1, json.RawMessage(`{"x":1}`)); !there || !known {
		t.Fatal("SetState of a session that is shown")
	}
	if there, _ := r.SetState("a", "s2", 1, nil); there {
		t.Fatal("SetState of nobody")
	}
	if got := string((*r.View(1 << 20).Snapshot)[0].State["s1"]); got != `{"x":1}` {
		t.Fatalf("state %q", got)
	}
	if r.View(3).Snapshot == nil || (*r.View(3).Snapshot)[0].State != nil {
		t.Fatal("a state beyond the bound is shown")
	}
	first := string(r.Snapshot(1 << 20))
	r.SetState("a", "s1", 1, nil)
	if string(r.Snapshot(1<<20)) == first || (*r.View(1 << 20).Snapshot)[0].State != nil {
		t.Fatal("a cleared state is still shown")
	}
}

// S11: a state that is set before others know the session follows the difference that shows it; one that is gone with its session is cleared.
func TestS11_StatesFollowTheirSessions(t *testing.T) {
	t.Parallel()
	r := presence.New("room")
	r.Join("a", "s1", 1, nil)
	if there, known := r.SetState("a", "s1", 1, json.RawMessage(`1`)); !there || known {
		t.Fatal("observers cannot know the session yet")
	}
	_, states, _ := r.Publish()
	if len(states) != 1 || states[0].Session != "s1" || string(states[0].Data) != "1" {
		t.Fatalf("with the join: %+v", states)
	}
	// A second session keeps the member while the first leaves and comes back between two differences.
	r.Join("a", "s2", 2, nil)
	r.Publish()
	r.Leave("a", "s1", 1)
	r.Join("a", "s1", 3, nil)
	_, states, ok := r.Publish()
	if !ok || len(states) != 1 || states[0].Session != "s1" || states[0].Data != nil {
		t.Fatalf("after coming back: %+v, %v", states, ok)
	}
	// Whoever moves into the listed part brings its state.
	full := presence.New("room")
	for i := range wire.RosterLimit {
		full.Join(fmt.Sprint("m", i), fmt.Sprint("s", i), 1, nil)
	}
	full.Join("late", "sl", 1, nil)
	full.SetState("late", "sl", 1, json.RawMessage(`2`))
	if _, states, _ := full.Publish(); len(states) != 0 {
		t.Fatalf("of a member that is not listed: %+v", states)
	}
	full.Leave("m0", "s0", 1)
	if _, states, _ := full.Publish(); len(states) != 1 || states[0].Member != "late" {
		t.Fatalf("moved into the list: %+v", states)
	}
}
