package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/tidewire/tidewire/wire"
)

func TestConfig_Precedence(t *testing.T) {
	t.Parallel()
	const file = `
addr: file:1
auth: {anonymous: true, jwt: {audience: [a, b]}}
limits: {connections: 10}
timing: {ping_interval: 11s}
`
	for _, c := range []struct {
		name string
		file string
		env  env
		flag string
		want string
	}{
		{name: "defaults", want: ":8080 250000 25s false []"},
		{name: "file", file: file, want: "file:1 10 11s true [a b]"},
		{name: "environment over defaults", env: env{"TIDEWIRE_LIMITS_CONNECTIONS": "7", "TIDEWIRE_AUTH_ANONYMOUS": "1"}, want: ":8080 7 25s true []"},
		{
			name: "environment over file", file: file, want: "env:2 7 12s false [c d]",
			env: env{"TIDEWIRE_ADDR": "env:2", "TIDEWIRE_LIMITS_CONNECTIONS": "7", "TIDEWIRE_TIMING_PING_INTERVAL": "12s", "TIDEWIRE_AUTH_ANONYMOUS": "false", "TIDEWIRE_AUTH_JWT_AUDIENCE": "c, d"},
		},
		{name: "an empty variable is none", file: file, env: env{"TIDEWIRE_ADDR": "", "TIDEWIRE_LIMITS_CONNECTIONS": ""}, want: "file:1 10 11s true [a b]"},
		{name: "flag over file", file: file, flag: "flag:3", want: "flag:3 10 11s true [a b]"},
		{name: "flag over environment and file", file: file, env: env{"TIDEWIRE_ADDR": "env:2"}, flag: "flag:3", want: "flag:3 10 11s true [a b]"},
		{name: "an empty section keeps the defaults", file: "limits:\nchannels:\n", env: env{"TIDEWIRE_LIMITS_CHANNELS": "3"}, want: ":8080 250000 25s false []"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"serve", "--print-config"}
			e := env{"TIDEWIRE_AUTH_JWT_SECRET": strings.Repeat("s", 32)}
			for k, v := range c.env {
				e[k] = v
			}
			if c.file != "" {
				args = append(args, "-c", writeConfig(t, c.file))
			}
			if c.flag != "" {
				args = append(args, "--addr", c.flag)
			}
			out, _, err := tw(t, e, args...)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Addr string
				Auth struct {
					Anonymous bool
					JWT       struct{ Audience []string }
				}
				Limits struct{ Connections int }
				Timing struct {
					PingInterval time.Duration `yaml:"ping_interval"`
				}
			}
			if err := yaml.Unmarshal([]byte(out), &got); err != nil {
				t.Fatal(err)
			}
			line := strings.Join([]string{got.Addr, sprint(got.Limits.Connections), got.Timing.PingInterval.String(), sprint(got.Auth.Anonymous), sprint(got.Auth.JWT.Audience)}, " ")
			if line != c.want {
				t.Errorf("got %s, want %s", line, c.want)
			}
		})
	}
}

func writeConfig(t *testing.T, content string) string { return file(t, "c.yaml", content) }

func TestConfig_UnknownKeys(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string]string{
		"adr: x":                        "unknown key adr; did you mean addr?",
		"limits: {frames_per_secnd: 3}": "unknown key limits.frames_per_secnd; did you mean limits.frames_per_second?",
		"auth: {jwt: {Secret: x}}":      "unknown key auth.jwt.Secret; did you mean auth.jwt.secret?",
		"channels: [{pattern: a, guard: public}, {gard: x}]": "unknown key channels[1].gard; did you mean channels[1].guard?",
		"backend_keys: [{name: a, value: x}]":                "unknown key backend_keys[0].value; the keys here are key, key_env, name",
		"ping_interval: 3s":                                  "unknown key ping_interval; did you mean timing.ping_interval?",
		"limits.connections: 3":                              "unknown key limits.connections",
		"quite_another_thing: 3":                             "unknown key quite_another_thing; the keys here are addr, allowed_origins, auth",
	} {
		_, _, err := tw(t, nil, "serve", "--print-config", "-c", writeConfig(t, yaml))
		wantConfigError(t, err, want)
	}
}

func TestConfig_WrongValues(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string]string{
		"limits: 3":                                             "limits is a single value, want a mapping",
		"addr: {a: b}":                                          "addr is a mapping, want a text",
		"addr: [a]":                                             "addr is a list, want a text",
		"addr: ''":                                              "want [HOST]:PORT",
		"allowed_origins: x":                                    "allowed_origins is a single value, want a list",
		"allowed_origins: ['example.com']":                      "example.com",
		"limits: {connections: many}":                           "limits.connections",
		"limits: {connections: '3'}":                            "limits.connections",
		"limits: {connections: 1.5}":                            "limits.connections",
		"limits: {connections: 0}":                              "limits.connections is 0, want more than zero",
		"limits: {connections: -1}":                             "limits.connections is -1",
		"limits: {frame_bytes: 2000000}":                        "FrameBytes",
		"limits: {subscriptions_per_tenant: 3}":                 "limits.subscriptions_per_tenant needs auth.tenant_claim",
		"auth: {anonymous: 1}":                                  "auth.anonymous",
		"timing: {ping_interval: 25}":                           "25 is not a duration with a unit",
		"timing: {ping_interval: fast}":                         `"fast" is not a duration`,
		"timing: {ping_interval: 0s}":                           "timing.ping_interval is 0s",
		"timing: {drain_window: -1s}":                           "timing.drain_window is -1s",
		"tls: {cert: a}":                                        "tls.cert and tls.key need each other",
		"tls: {cert: /nowhere, key: /nowhere}":                  "tls: ",
		"log: {level: loud}":                                    `log.level is "loud"`,
		"log: {format: xml}":                                    `log.format is "xml"`,
		"channels: [{guard: public}]":                           "channels[0]: pattern is missing",
		"channels: [{pattern: a}]":                              `channels[0] "a": guard is missing`,
		"channels: [{pattern: 'a..b', guard: public}]":          "a..b",
		"channels: [{pattern: a, guard: public, policy: hope}]": `unknown policy "hope"`,
		"channels: [{pattern: a, guard: public}, {pattern: a, guard: public}]":               "declared twice",
		"auth: {jwt: {secret: short}}":                                                       "auth.jwt: auth: the JWT secret has 5 bytes",
		"auth: {jwt: {secret: a, jwks_url: 'https://x'}}":                                    "exclude each other",
		"auth: {jwt: {secret: a, secret_env: X}}":                                            "auth.jwt.secret and auth.jwt.secret_env exclude each other",
		"auth: {jwt: {secret_env: NOT_THERE}}":                                               "auth.jwt.secret_env: the variable NOT_THERE is not set",
		"auth: {jwt: {issuer: a}}":                                                           "auth.jwt needs secret",
		"backend_keys: [{key: abcdefghijklmnop}]":                                            "backend_keys[0]: name is missing",
		"backend_keys: [{name: a}]":                                                          "backend_keys[0] (a): the key has fewer than 16 bytes",
		"backend_keys: [{name: a, key: abcdefghijklmnop}, {name: b, key: abcdefghijklmnop}]": "the same key",
		"backend_keys: [{name: a, key_env: NOT_THERE}]":                                      "backend_keys[0].key_env",
		"a: b: c":          "not YAML",
		"- a":              "not YAML",
		"addr: a\naddr: b": "already defined",
	} {
		_, _, err := tw(t, nil, "serve", "--print-config", "-c", writeConfig(t, yaml))
		if err == nil {
			t.Errorf("%s: no error", yaml)
			continue
		}
		wantConfigError(t, err, want)
	}
	_, _, err := tw(t, nil, "serve", "-c", "/nowhere.yaml")
	wantConfigError(t, err, "/nowhere.yaml")
	_, _, err = tw(t, env{"TIDEWIRE_CONFIG": "/nowhere.yaml"}, "serve", "--print-config")
	wantConfigError(t, err, "/nowhere.yaml")
	_, _, err = tw(t, env{"TIDEWIRE_LIMITS_CONNECTIONS": "s3cret"}, "serve", "--print-config")
	wantConfigError(t, err, "TIDEWIRE_LIMITS_CONNECTIONS in the environment is not a number")
	if strings.Contains(err.Error(), "s3cret") {
		t.Error("the error repeats a variable's value")
	}
}

func TestConfig_PrintHidesSecrets(t *testing.T) {
	t.Parallel()
	secrets := []string{"jwt-secret-of-at-least-thirty-two-bytes", "backend-key-0123456789", "client-key-0123456789", "from-the-environment-0123456789", "url-password"}
	config := `
auth:
  api_keys: [{name: robot, key: client-key-0123456789}]
  jwt: {secret: jwt-secret-of-at-least-thirty-two-bytes}
backend_keys:
  - {name: shop, key: backend-key-0123456789}
  - {name: office, key_env: OFFICE_KEY}
`
	e := env{"OFFICE_KEY": "from-the-environment-0123456789"}
	out, stderr, err := tw(t, e, "serve", "--print-config", "-c", writeConfig(t, config))
	if err != nil {
		t.Fatal(err)
	}
	out2, _, err := tw(t, nil, "serve", "--print-config", "-c", writeConfig(t, "auth: {jwt: {jwks_url: 'https://user:url-password@example.com/keys'}}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets {
		if strings.Contains(out+out2+stderr, s) {
			t.Errorf("the output has %s", s)
		}
	}
	for _, want := range []string{"name: shop", "secret: '***'", "key_env: OFFICE_KEY", "ping_interval: 25s"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %s:\n%s", want, out)
		}
	}
	cfg, err := decodeConfig([]byte(config), e.get, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := sprint(cfg) + sprintf("%+v %#v", cfg, cfg); strings.Contains(s, "0123456789") {
		t.Error("a formatted configuration shows a secret")
	}
}

// allKeys returns the path of every key, those of list entries without an index.
func allKeys(path string, t reflect.Type) []string {
	var out []string
	for name, typ := range keysOf(t) {
		at := joinKey(path, name)
		out = append(out, at)
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() == reflect.Struct {
			out = append(out, allKeys(at, typ)...)
		}
	}
	slices.Sort(out)
	return out
}

// The documentation has a row for every key, with its default, and no other.
func TestConfig_EveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[m[1]] = m[2]
	}
	var want, got []string
	for _, k := range allKeys("", reflect.TypeFor[config]()) {
		if slices.ContainsFunc(allKeys("", reflect.TypeFor[config]()), func(o string) bool { return strings.HasPrefix(o, k+".") }) {
			continue // a mapping
		}
		want = append(want, k)
	}
	for k := range documented {
		got = append(got, k)
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("keys of the configuration (-) and of docs/configuration.md (+):\n%s", d)
	}
	out, err := yaml.Marshal(defaults())
	if err != nil {
		t.Fatal(err)
	}
	var flat map[string]any
	if err := yaml.Unmarshal(out, &flat); err != nil {
		t.Fatal(err)
	}
	for _, l := range leaves("", reflect.TypeFor[config]()) {
		value := lookup(flat, l.path)
		text := sprint(value)
		if d, err := time.ParseDuration(text); err == nil && l.typ == reflect.TypeFor[time.Duration]() {
			text = shortDuration(d)
		}
		switch text {
		case "", "[]":
			text = "none"
		}
		if doc := strings.NewReplacer("`", "", ",", "").Replace(documented[l.path]); doc != text {
			t.Errorf("%s: the default is %s, documented as %s", l.path, text, doc)
		}
	}
}

func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

func lookup(m map[string]any, path string) any {
	var v any = m
	for name := range strings.SplitSeq(path, ".") {
		v = v.(map[string]any)[name]
	}
	return v
}

// The example has every key that can stand beside the others, and is right.
func TestConfig_ExampleIsCompleteAndValid(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../examples/tidewire.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e := env{"TIDEWIRE_JWT_SECRET": strings.Repeat("s", 32), "TIDEWIRE_BACKEND_KEY": "0123456789abcdef"}
	if _, _, err := tw(t, e, "serve", "--print-config", "-c", "../../examples/tidewire.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, k := range allKeys("", reflect.TypeFor[config]()) {
		last := k[strings.LastIndexByte(k, '.')+1:]
		if !regexp.MustCompile(`(?m)^[ #-]*`+last+`:`).Match(raw) && !strings.Contains(string(raw), "{"+last+":") && !strings.Contains(string(raw), ", "+last+":") {
			t.Errorf("the example does not show %s", k)
		}
	}
	// What it says about defaults is so: with the sections of numbers alone, nothing changes.
	cfg, err := decodeConfig(raw, e.get, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(defaults().Limits, cfg.Limits) + cmp.Diff(defaults().Timing, cfg.Timing); d != "" {
		t.Errorf("the example's numbers are not the defaults: %s", d)
	}
}

func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		"", "addr: x", "allowed_origins: [https://a.example]\nauth: {anonymous: true, jwt: {leeway: 3s}}\nlog: {level: debug}", "limits:\n  channels: 3\ntiming:\n  idle_timeout: 1m30s", "limits: {connections: 1e99}", "channels: [{pattern: 'a.{b}', guard: 'params.b == actor.id'}]", "timing: {ping_interval: 1h}",
		"a: &a [*a]", "? {a: b} : c", "1: 2", "channels: {0: x}", "auth: {jwt: {secret_env: X}}", "limits: {1: 2, null: 3}", "channels: [null, 3, [], {}]", "\xff", "addr: !!binary aGk=",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := decodeConfig(data, func(string) string { return "" }, nil)
		if err != nil {
			if wire.AsError(err).Code != wire.CodeConfigInvalid {
				t.Fatalf("error %v", err)
			}
			return
		}
		out, err := cfg.print()
		if err != nil {
			t.Fatal(err)
		}
		for i := range cfg.BackendKeys { // what is hidden cannot be read back
			cfg.BackendKeys[i].Key = ""
		}
		if len(cfg.BackendKeys)+len(cfg.Auth.APIKeys) > 0 || cfg.Auth.JWT.enabled() {
			return
		}
		again, err := decodeConfig(out, func(string) string { return "" }, nil)
		if err != nil {
			t.Fatalf("the printed configuration is refused: %v\n%s", err, out)
		}
		twice, err := again.print()
		if err != nil || string(twice) != string(out) {
			t.Fatalf("%v\n%s", err, cmp.Diff(string(out), string(twice)))
		}
	})
}
