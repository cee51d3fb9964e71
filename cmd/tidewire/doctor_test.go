package main

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

func doctorSays(t *testing.T, yaml string) (string, error) {
	t.Helper()
	out, _, err := tw(t, nil, "doctor", "-c", writeConfig(t, "streams: {objects: memory}\nlimits: {connections: 10}\n"+yaml))
	return out, err
}

func TestDoctor_DeclaresWhatAServerDeclares(t *testing.T) {
	t.Parallel()
	path, _ := sqliteFile(t, cardsDDL)
	good := "database: sqlite:" + path + `
entities:
  - {name: card, from: cards, visible: org = $actor.org, hide: [secret]}
queries:
  - {name: all, entity: card, guard: public}
  - {name: ten, entity: card, order: title, limit: 10, guard: public}
`
	out, err := doctorSays(t, good)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{`ok    query "all": routed, table main.cards`, `ok    query "ten": windowed, table main.cards`, "ok    database: sqlite"} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("no %q in\n%s", want, out)
		}
	}

	out, err = doctorSays(t, good+`  - {name: hidden, entity: card, columns: [secret], guard: public}
  - {name: itself, from: cards, guard: public}
  - {name: wrong, entity: card, where: titel = 'x', guard: public}
`)
	if !errors.Is(err, errUnwell) {
		t.Errorf("%v, want %v", err, errUnwell)
	}
	for _, want := range []string{
		`ok    query "all"`, `FAIL  CONFIG_INVALID: queries[2] "hidden": entity "card" does not show column "secret"`,
		`FAIL  CONFIG_INVALID: queries[3] "itself": the table cards is an entity's`, `FAIL  CONFIG_INVALID: queries[4] "wrong": where at 1`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "ok    database") {
		t.Errorf("the database is said to be well:\n%s", out)
	}
}

// nobody is a loopback address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestPostgresAway_ServeWaitsUntilItIsStoppedAndDoctorSaysSo(t *testing.T) {
	t.Parallel()
	yaml := "database: postgres://app:hunter2@" + nobody(t) + "/app?sslmode=disable\n"
	out, err := doctorSays(t, yaml)
	if !errors.Is(err, errUnwell) || !strings.Contains(out, "FAIL  PG_UNREACHABLE: ") || strings.Contains(out, "CONFIG_INVALID") || strings.Contains(out, "hunter2") {
		t.Errorf("%v\n%s", err, out)
	}
	s := start(t, nil, "serve", "-c", writeConfig(t, "addr: 127.0.0.1:0\n"+yaml))
	eventually(t, "a second try", func() bool { return strings.Contains(s.stderr.String(), "attempt=2") })
	if log := s.stderr.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "connection refused") || strings.Contains(log, "hunter2") {
		t.Errorf("logged %s", log)
	}
	if err := s.stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestPostgresAway_ServeBeginsWhenItComes(t *testing.T) {
	t.Parallel()
	pg := testenv.NewServer(t)
	pg.Stop()
	s := start(t, nil, "serve", "-c", writeConfig(t, "addr: 127.0.0.1:0\ntiming: {drain_window: 0s}\ndatabase: "+pg.URL+"\n"))
	eventually(t, "a warning", func() bool { return strings.Contains(s.stderr.String(), "trying again") })
	pg.Start()
	s.wait("listening on ")
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	_, _, err := tw(t, nil, "serve", "-c", writeConfig(t, "addr: 127.0.0.1:0\ndatabase: "+strings.Replace(pg.URL, "/postgres?", "/nothing?", 1)+"\n"))
	wantConfigError(t, err, `database "nothing" does not exist`)
}

// refused is an error of the server.
type refused string

func (r refused) Error() string    { return string(r) }
func (r refused) SQLState() string { return string(r) }

func TestPostgresAway_WhatAServerRefusesIsNotAway(t *testing.T) {
	t.Parallel()
	for state, want := range map[refused]bool{"57P03": true, "53300": true, "08006": true, "28P01": false, "28000": false, "3D000": false, "42501": false, "42704": false} {
		if got := away(errors.Join(errors.New("connect"), state)); got != want {
			t.Errorf("%s: %v", string(state), got)
		}
	}
	_, _, err := openDatabase(t.Context(), "postgres://127.0.0.1:port/app", slog.New(slog.DiscardHandler))
	wantConfigError(t, err)
	begin := time.Now()
	if _, _, err := awaitDatabase(t.Context(), "postgres://127.0.0.1:port/app", slog.New(slog.DiscardHandler)); wire.AsError(err).Code != wire.CodeConfigInvalid || time.Since(begin) > patience {
		t.Error(err)
	}
}
