package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
)

func codes(found []postgres.Finding) string {
	var out []string
	for _, f := range found {
		out = append(out, string(f.Code))
	}
	return strings.Join(out, " ")
}

func find(t *testing.T, found []postgres.Finding, code postgres.Code) postgres.Finding {
	t.Helper()
	for _, f := range found {
		if f.Code == code {
			if f.Cause == "" || f.Fix == "" || strings.Contains(f.Cause, "\n") {
				t.Errorf("%+v", f)
			}
			return f
		}
	}
	t.Errorf("%s was not found: %v", code, found)
	return postgres.Finding{}
}

func TestS22_Configuration(t *testing.T) {
	t.Parallel()
	url := "postgres://u@127.0.0.1:1/a"
	for name, o := range map[string]postgres.Options{
		"slot":        {URL: url, Slot: "Slot"},
		"publication": {URL: url, Publication: `p"; DROP TABLE t; --`},
		"URL":         {URL: "postgres://u@127.0.0.1:x/a"},
		"replication": {URL: url, ReplicationURL: "postgres://u@127.0.0.1:x/a"},
		"database":    {URL: url, ReplicationURL: "postgres://r@127.0.0.1:1/b"},
		"timeout":     {URL: url, Heartbeat: time.Minute, Timeout: time.Second},
	} {
		if _, err := postgres.Open(t.Context(), o); !errors.Is(err, postgres.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := postgres.Open(t.Context(), postgres.Options{URL: url}); err == nil || errors.Is(err, postgres.ErrConfig) {
		t.Errorf("no server: %v", err)
	}
}

func TestS23_NothingIsFound(t *testing.T) {
	t.Parallel()
	e := prepare(t, simple)
	e.table("t")
	if found := e.db.Check(t.Context()); len(found) != 0 {
		t.Errorf("found %v", found)
	}
	e.run()
	if found := e.db.Check(t.Context()); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}

func TestS23_ReplicaIdentity(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TABLE plain (id int PRIMARY KEY); `+partitioned+`CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)`, func(o *postgres.Options) {
		o.Tables = []feedName{named("plain"), named("t"), named("absent")}
	})
	found := e.db.Check(t.Context())
	var fixes []string
	for _, f := range found {
		if f.Code == postgres.CodeReplicaIdentity {
			if f.Fatal {
				t.Errorf("%v", f)
			}
			fixes = append(fixes, f.Fix)
		}
	}
	if len(fixes) != 2 || !find(t, found, postgres.CodeTable).Fatal {
		t.Fatalf("found %v", found)
	}
	for _, fix := range fixes { // the fix is a fix
		e.exec(fix)
	}
	if s := codes(e.db.Check(t.Context())); s != string(postgres.CodeTable) {
		t.Errorf("found %s", s)
	}
}

// S23: a role that may do nothing learns everything that it lacks, each with what to do, and Run says the first.
func TestS23_Privileges(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY FULL`)
	role := "role_" + e.value(`current_database()`)
	e.exec(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() { e.exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	o := options(t, strings.Replace(e.url, "postgres@", role+"@", 1))
	o.Tables = []feedName{named("t")}
	db := open(t, o)
	steps := []struct {
		code postgres.Code
		fix  string
	}{
		{postgres.CodePrivileges, `ALTER ROLE ` + role + ` REPLICATION`},
		{postgres.CodePublication, `CREATE PUBLICATION tidewire WITH (publish = 'insert')`},
		{postgres.CodePublication, `ALTER PUBLICATION tidewire SET (publish = 'insert, update, delete, truncate')`},
		{postgres.CodeTable, `GRANT SELECT ON t TO ` + role},
		{postgres.CodePublication, `ALTER PUBLICATION tidewire ADD TABLE t`},
	}
	for _, s := range steps {
		found := db.Check(t.Context())
		f := find(t, found, s.code)
		if found[0] != f || !f.Fatal {
			t.Errorf("before %q: %v", s.fix, found)
		}
		failed, ok := errors.AsType[*postgres.Error](db.Run(t.Context(), &sink{}))
		if !ok || failed.Finding != f {
			t.Errorf("Run = %v, want %v", failed, f)
		}
		e.exec(s.fix)
	}
	if found := db.Check(t.Context()); len(found) != 0 {
		t.Errorf("found %v", found)
	}
	e.db = db // a role without any right but these runs the feed
	e.run()
	e.insert(1)
}

func TestS23_Server(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t, "wal_level=replica", "max_replication_slots=0", "max_wal_senders=1")
	o := options(t, s.URL)
	db := open(t, o)
	found := db.Check(t.Context())
	if !find(t, found, postgres.CodeWALLevel).Fatal {
		t.Errorf("found %v", found)
	}
	find(t, found, postgres.CodeSlots)
	if failed, ok := errors.AsType[*postgres.Error](db.Run(t.Context(), &sink{})); !ok || failed.Code != postgres.CodeWALLevel {
		t.Errorf("Run = %v", failed)
	}
	sql := connect(t, s.URL)
	exec(t, sql, `CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0`)
	latin := open(t, options(t, strings.Replace(s.URL, "/postgres?", "/latin?", 1)))
	if !find(t, latin.Check(t.Context()), postgres.CodeEncoding).Fatal {
		t.Error("the encoding is no matter")
	}
	s.Kill()
	find(t, db.Check(t.Context()), postgres.CodeUnreachable)
}

// S22: two URLs that name one database on two servers.
func TestS22_OtherServer(t *testing.T) {
	t.Parallel()
	a, b := testenv.NewServer(t), testenv.NewServer(t)
	o := options(t, a.URL)
	o.ReplicationURL = b.URL
	db := open(t, o)
	if !find(t, db.Check(t.Context()), postgres.CodeOtherDatabase).Fatal {
		t.Error("it is no matter")
	}
	if failed, ok := errors.AsType[*postgres.Error](db.Run(t.Context(), &sink{})); !ok || failed.Code != postgres.CodeOtherDatabase {
		t.Errorf("Run = %v", failed)
	}
}

func TestS23_Slot(t *testing.T) {
	t.Parallel()
	e := start(t, simple, durable)
	other := options(t, e.url)
	durable(&other)
	db := open(t, other)
	found := db.Check(t.Context())
	if s := codes(found); s != "REPLICATOR_SLOT_HELD PG_RETAINED" {
		t.Errorf("found %s", s)
	}
	find(t, found, postgres.CodeSlotHeld)
	find(t, found, postgres.CodeRetained) // max_slot_wal_keep_size is not set
	if err := db.DropSlot(t.Context()); err == nil {
		t.Error("a slot was dropped that is read")
	}
	if err := e.stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := db.DropSlot(t.Context()); err != nil {
		t.Error(err)
	}
	e.exec(`SELECT pg_create_physical_replication_slot('` + other.Slot + `')`)
	if !find(t, db.Check(t.Context()), postgres.CodeSlot).Fatal {
		t.Error("a physical slot is no matter")
	}
	if failed, ok := errors.AsType[*postgres.Error](db.Run(t.Context(), &sink{})); !ok || failed.Code != postgres.CodeSlot {
		t.Errorf("Run = %v", failed)
	}
	e.exec(`SELECT pg_drop_replication_slot('` + other.Slot + `')`)
}
