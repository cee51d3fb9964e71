package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/wire"
)

// maxConfigBytes bounds the configuration file.
const maxConfigBytes = 1 << 20

// secret is a value that is never printed.
type secret string

const hidden = "***"

func (s secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString keeps it out of %#v.
func (s secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalYAML keeps it out of --print-config.
func (s secret) MarshalYAML() (any, error) { return s.String(), nil }

// config is the configuration. docs/configuration.md describes each key.
type config struct {
	Addr           string          `koanf:"addr" yaml:"addr"`
	Name           string          `koanf:"name" yaml:"name"`
	Build          string          `koanf:"build" yaml:"build"`
	AllowedOrigins []string        `koanf:"allowed_origins" yaml:"allowed_origins"`
	Compression    bool            `koanf:"compression" yaml:"compression"`
	TLS            tlsConfig       `koanf:"tls" yaml:"tls"`
	Auth           authConfig      `koanf:"auth" yaml:"auth"`
	BackendKeys    []keyConfig     `koanf:"backend_keys" yaml:"backend_keys"`
	Channels       []channelConfig `koanf:"channels" yaml:"channels"`
	Objects        []objectConfig  `koanf:"objects" yaml:"objects"`
	Database       secret          `koanf:"database" yaml:"database"`
	Entities       []entityConfig  `koanf:"entities" yaml:"entities"`
	Queries        []queryConfig   `koanf:"queries" yaml:"queries"`
	Streams        streamsConfig   `koanf:"streams" yaml:"streams"`
	Limits         limitsConfig    `koanf:"limits" yaml:"limits"`
	Timing         timingConfig    `koanf:"timing" yaml:"timing"`
	Log            logConfig       `koanf:"log" yaml:"log"`
}

type tlsConfig struct {
	Cert string `koanf:"cert" yaml:"cert"`
	Key  string `koanf:"key" yaml:"key"` // a file, not a secret
}

type authConfig struct {
	Anonymous   bool        `koanf:"anonymous" yaml:"anonymous"`
	APIKeys     []keyConfig `koanf:"api_keys" yaml:"api_keys"`
	JWT         jwtConfig   `koanf:"jwt" yaml:"jwt"`
	TenantClaim string      `koanf:"tenant_claim" yaml:"tenant_claim"`
}

type jwtConfig struct {
	Secret    secret        `koanf:"secret" yaml:"secret"`
	SecretEnv string        `koanf:"secret_env" yaml:"secret_env"`
	JWKSURL   string        `koanf:"jwks_url" yaml:"jwks_url"`
	JWKSFile  string        `koanf:"jwks_file" yaml:"jwks_file"`
	Issuer    string        `koanf:"issuer" yaml:"issuer"`
	Audience  []string      `koanf:"audience" yaml:"audience"`
	Leeway    time.Duration `koanf:"leeway" yaml:"leeway"`
}

// enabled reports whether tokens are verified.
func (j jwtConfig) enabled() bool {
	return j.Secret != "" || j.JWKSURL != "" || j.JWKSFile != ""
}

type keyConfig struct {
	Name   string `koanf:"name" yaml:"name"`
	Key    secret `koanf:"key" yaml:"key"`
	KeyEnv string `koanf:"key_env" yaml:"key_env"`
}

type channelConfig struct {
	Pattern  string `koanf:"pattern" yaml:"pattern"`
	Guard    string `koanf:"guard" yaml:"guard"`
	Presence bool   `koanf:"presence" yaml:"presence"`
	Policy   string `koanf:"policy" yaml:"policy"`

	History historyConfig `koanf:"history" yaml:"history"`
}

type objectConfig struct {
	Pattern string `koanf:"pattern" yaml:"pattern"`
	Guard   string `koanf:"guard" yaml:"guard"`
}

// entityConfig declares an entity: see tidewire.Entity.
type entityConfig struct {
	Name    string   `koanf:"name" yaml:"name"`
	From    string   `koanf:"from" yaml:"from"`
	Visible string   `koanf:"visible" yaml:"visible"`
	Policy  string   `koanf:"policy" yaml:"policy"`
	Columns []string `koanf:"columns" yaml:"columns"`
	Hide    []string `koanf:"hide" yaml:"hide"`
}

// queryConfig declares a live query: see query.Definition.
type queryConfig struct {
	Name    string   `koanf:"name" yaml:"name"`
	Entity  string   `koanf:"entity" yaml:"entity"`
	From    string   `koanf:"from" yaml:"from"`
	Where   string   `koanf:"where" yaml:"where"`
	Visible string   `koanf:"visible" yaml:"visible"`
	Policy  string   `koanf:"policy" yaml:"policy"`
	Order   string   `koanf:"order" yaml:"order"`
	Limit   int      `koanf:"limit" yaml:"limit"`
	Columns []string `koanf:"columns" yaml:"columns"`
	Guard   string   `koanf:"guard" yaml:"guard"`

	Input []paramConfig `koanf:"input" yaml:"input"`
}

type paramConfig struct {
	Name     string `koanf:"name" yaml:"name"`
	Type     string `koanf:"type" yaml:"type"`
	List     bool   `koanf:"list" yaml:"list"`
	Optional bool   `koanf:"optional" yaml:"optional"`
	Max      int    `koanf:"max" yaml:"max"`
}

func (q queryConfig) definition() query.Definition {
	d := query.Definition{Name: q.Name, From: q.From, Where: q.Where, Visible: q.Visible, Order: q.Order, Limit: q.Limit, Columns: noneIsNil(q.Columns)}
	for _, p := range q.Input {
		if d.Input == nil {
			d.Input = map[string]query.Param{}
		}
		d.Input[p.Name] = query.Param{Type: p.Type, List: p.List, Optional: p.Optional, Max: p.Max}
	}
	return d
}

// historyConfig keeps nothing if the size is zero.
type historyConfig struct {
	Size      int           `koanf:"size" yaml:"size"`
	TTL       time.Duration `koanf:"ttl" yaml:"ttl"`
	Bytes     int           `koanf:"bytes" yaml:"bytes"`
	AckWindow int           `koanf:"ack_window" yaml:"ack_window"`
}

func (h historyConfig) options() *tidewire.History {
	if h.Size == 0 {
		return nil
	}
	return &tidewire.History{Size: h.Size, TTL: h.TTL, Bytes: int64(h.Bytes), AckWindow: h.AckWindow}
}

// check reports what is wrong. Zeros are the defaults of the node.
func (h historyConfig) check() error {
	switch {
	case h.Size < 0, h.TTL < 0, h.Bytes < 0, h.AckWindow < 0:
		return errors.New("a history's values must not be negative")
	case h.Size == 0 && h != (historyConfig{}):
		return errors.New("history.size is missing: it keeps so many messages")
	}
	return nil
}

// streamsConfig says where the histories of channels and the logs of objects are kept: memory, or sqlite:FILE.
type streamsConfig struct {
	Channels string `koanf:"channels" yaml:"channels"`
	Objects  string `koanf:"objects" yaml:"objects"`
}

type limitsConfig struct {
	Connections              int `koanf:"connections" yaml:"connections"`
	AcceptsPerSecond         int `koanf:"accepts_per_second" yaml:"accepts_per_second"`
	AcceptBurst              int `koanf:"accept_burst" yaml:"accept_burst"`
	FrameBytes               int `koanf:"frame_bytes" yaml:"frame_bytes"`
	FramesPerSecond          int `koanf:"frames_per_second" yaml:"frames_per_second"`
	FrameBurst               int `koanf:"frame_burst" yaml:"frame_burst"`
	ChannelsPerConnection    int `koanf:"channels_per_connection" yaml:"channels_per_connection"`
	SubscriptionsPerTenant   int `koanf:"subscriptions_per_tenant" yaml:"subscriptions_per_tenant"`
	Channels                 int `koanf:"channels" yaml:"channels"`
	LiveQueriesPerConnection int `koanf:"live_queries_per_connection" yaml:"live_queries_per_connection"`
	LiveQueries              int `koanf:"live_queries" yaml:"live_queries"`
	QueueMessages            int `koanf:"queue_messages" yaml:"queue_messages"`
	QueueBytes               int `koanf:"queue_bytes" yaml:"queue_bytes"`
	DroppedFrames            int `koanf:"dropped_frames" yaml:"dropped_frames"`
	PresenceBytes            int `koanf:"presence_bytes" yaml:"presence_bytes"`
	StateBytes               int `koanf:"state_bytes" yaml:"state_bytes"`
	PublishBatch             int `koanf:"publish_batch" yaml:"publish_batch"`
	ObjectWaits              int `koanf:"object_waits" yaml:"object_waits"`
	ObjectWaitsPerClient     int `koanf:"object_waits_per_client" yaml:"object_waits_per_client"`
}

type timingConfig struct {
	PresenceGrace       time.Duration `koanf:"presence_grace" yaml:"presence_grace"`
	PresenceTTL         time.Duration `koanf:"presence_ttl" yaml:"presence_ttl"`
	HeartbeatInterval   time.Duration `koanf:"heartbeat_interval" yaml:"heartbeat_interval"`
	PingInterval        time.Duration `koanf:"ping_interval" yaml:"ping_interval"`
	PongTimeout         time.Duration `koanf:"pong_timeout" yaml:"pong_timeout"`
	WriteTimeout        time.Duration `koanf:"write_timeout" yaml:"write_timeout"`
	HelloTimeout        time.Duration `koanf:"hello_timeout" yaml:"hello_timeout"`
	IdleTimeout         time.Duration `koanf:"idle_timeout" yaml:"idle_timeout"`
	CommandTimeout      time.Duration `koanf:"command_timeout" yaml:"command_timeout"`
	AckTimeout          time.Duration `koanf:"ack_timeout" yaml:"ack_timeout"`
	ObjectEvent         time.Duration `koanf:"object_event" yaml:"object_event"`
	ReauthorizeInterval time.Duration `koanf:"reauthorize_interval" yaml:"reauthorize_interval"`
	DrainWindow         time.Duration `koanf:"drain_window" yaml:"drain_window"`
	HeaderTimeout       time.Duration `koanf:"header_timeout" yaml:"header_timeout"`
}

type logConfig struct {
	Level  string `koanf:"level" yaml:"level"`
	Format string `koanf:"format" yaml:"format"`
}

func defaults() config {
	return config{
		Addr:    ":8080",
		Streams: streamsConfig{Channels: "memory", Objects: "sqlite:tidewire-objects.db"},
		Limits: limitsConfig{
			Connections: 250_000, AcceptsPerSecond: 1000, AcceptBurst: 2000, FrameBytes: 256 << 10, FramesPerSecond: 64, FrameBurst: 256,
			ChannelsPerConnection: 64, Channels: 10_000, LiveQueriesPerConnection: 128, LiveQueries: 10_000, QueueMessages: 1024, QueueBytes: 1 << 20, DroppedFrames: 32,
			PresenceBytes: 1024, StateBytes: 1024, PublishBatch: 1000, ObjectWaits: 10_000, ObjectWaitsPerClient: 256,
		},
		Timing: timingConfig{
			PresenceGrace: 10 * time.Second, PresenceTTL: time.Minute, HeartbeatInterval: 15 * time.Second, PingInterval: 25 * time.Second,
			PongTimeout: time.Minute, WriteTimeout: 10 * time.Second, HelloTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
			CommandTimeout: 30 * time.Second, AckTimeout: 5 * time.Second, ObjectEvent: 30 * time.Second, ReauthorizeInterval: 30 * time.Second, DrainWindow: 5 * time.Second, HeaderTimeout: 5 * time.Second,
		},
		Log: logConfig{Level: "info", Format: "text"},
	}
}

// configError is a wrong configuration.
func configError(format string, args ...any) error {
	return wire.Errorf(wire.CodeConfigInvalid, format, args...)
}

// readConfigFile returns the bytes of a configuration file.
func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, configError("%v", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && info.Size() > maxConfigBytes {
		return nil, configError("%s has %d bytes, more than %d", path, info.Size(), maxConfigBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, configError("%v", err)
	}
	return data, nil
}

// decodeConfig joins, from the weakest: the defaults, the file's bytes, the environment and the values of flags by key.
func decodeConfig(file []byte, getenv func(string) string, flags map[string]any) (config, error) {
	if len(file) > maxConfigBytes {
		return config{}, configError("the file has %d bytes, more than %d", len(file), maxConfigBytes)
	}
	c := defaults()
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(file), yaml.Parser()); err != nil {
		return config{}, configError("the file is not YAML with settings: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := checkKeys("", k.Raw(), reflect.TypeFor[config]()); err != nil {
		return config{}, err
	}
	env, err := envValues(getenv)
	if err != nil {
		return config{}, err
	}
	for _, values := range []map[string]any{env, flags} {
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			return config{}, configError("%v", err)
		}
	}
	err = k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:     &c,
		TagName:    "koanf",
		DecodeHook: mapstructure.DecodeHookFuncType(decodeValue),
		MatchName:  func(key, field string) bool { return key == field },
	}})
	if err != nil {
		return config{}, configError("%s", decodeText(err))
	}
	if err := c.resolve(getenv); err != nil {
		return config{}, err
	}
	return c, c.check()
}

// decodeText makes one line of what the decoder says.
func decodeText(err error) string {
	text := strings.TrimPrefix(err.Error(), "decoding failed due to the following error(s):")
	return strings.Join(strings.Fields(text), " ")
}

// decodeValue reads durations, which need a unit, and takes no fraction for a number.
func decodeValue(from, to reflect.Type, value any) (any, error) {
	if to.Kind() == reflect.Int && from.Kind() != reflect.Int {
		return nil, fmt.Errorf("%v is not a whole number", value)
	}
	if to != reflect.TypeFor[time.Duration]() || from == to {
		return value, nil
	}
	text, ok := value.(string)
	if !ok {
		return nil, fmt.Errorf("%v is not a duration with a unit, such as 10s", value)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration with a unit, such as 10s", text)
	}
	return d, nil
}

// resolve takes secrets from the variables that the configuration names.
func (c *config) resolve(getenv func(string) string) error {
	take := func(at string, value *secret, name string) error {
		switch {
		case name == "":
			return nil
		case *value != "":
			return configError("%s and %s_env exclude each other", at, at)
		}
		if *value = secret(getenv(name)); *value == "" {
			return configError("%s_env: the variable %s is not set", at, name)
		}
		return nil
	}
	if err := take("auth.jwt.secret", &c.Auth.JWT.Secret, c.Auth.JWT.SecretEnv); err != nil {
		return err
	}
	for list, keys := range map[string][]keyConfig{"auth.api_keys": c.Auth.APIKeys, "backend_keys": c.BackendKeys} {
		for i := range keys {
			if err := take(fmt.Sprintf("%s[%d].key", list, i), &keys[i].Key, keys[i].KeyEnv); err != nil {
				return err
			}
		}
	}
	return nil
}

// check reports what is wrong with the values, but for what the node and the guards check.
func (c *config) check() error {
	_, port, err := net.SplitHostPort(c.Addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return configError("addr is %q, want [HOST]:PORT", c.Addr)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return configError("tls.cert and tls.key need each other")
	}
	if err := checkNumbers(c); err != nil {
		return err
	}
	sources := 0
	for _, set := range []bool{c.Auth.JWT.Secret != "", c.Auth.JWT.JWKSURL != "", c.Auth.JWT.JWKSFile != ""} {
		if set {
			sources++
		}
	}
	if sources > 1 {
		return configError("auth.jwt: secret, jwks_url and jwks_file exclude each other")
	}
	if j := c.Auth.JWT; sources == 0 && (j.Issuer != "" || len(j.Audience) > 0) {
		return configError("auth.jwt needs secret, secret_env, jwks_url or jwks_file")
	}
	if err := errors.Join(checkAPIKeys("auth.api_keys", c.Auth.APIKeys), checkAPIKeys("backend_keys", c.BackendKeys)); err != nil {
		return err
	}
	if c.Limits.SubscriptionsPerTenant > 0 && c.Auth.TenantClaim == "" {
		return configError("limits.subscriptions_per_tenant needs auth.tenant_claim")
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		return configError("log.level is %q, want debug, info, warn or error", c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		return configError("log.format is %q, want text or json", c.Log.Format)
	}
	for i, ch := range c.Channels {
		if ch.Pattern == "" {
			return configError("channels[%d]: pattern is missing", i)
		}
		if strings.TrimSpace(ch.Guard) == "" {
			return configError("channels[%d] %q: guard is missing; want public, readonly or an expression", i, ch.Pattern)
		}
		if err := ch.History.check(); err != nil {
			return configError("channels[%d] %q: %v", i, ch.Pattern, err)
		}
	}
	for at, store := range map[string]string{"streams.channels": c.Streams.Channels, "streams.objects": c.Streams.Objects} {
		if file, ok := strings.CutPrefix(store, "sqlite:"); store != "memory" && (!ok || file == "") {
			return configError("%s is %q, want memory or sqlite:FILE", at, store)
		}
	}
	if c.Timing.ObjectEvent > object.MaxEventTimeout {
		return configError("timing.object_event is %v, want at most %v", c.Timing.ObjectEvent, object.MaxEventTimeout)
	}
	if err := c.checkQueries(); err != nil {
		return err
	}
	for i, o := range c.Objects {
		if o.Pattern == "" {
			return configError("objects[%d]: pattern is missing", i)
		}
		if strings.TrimSpace(o.Guard) == "" {
			return configError("objects[%d] %q: guard is missing; want public, readonly or an expression", i, o.Pattern)
		}
	}
	return nil
}

func (c *config) checkQueries() error {
	for at, n := range map[string]int{"entities": len(c.Entities), "queries": len(c.Queries)} {
		if n > 0 && c.Database == "" {
			return configError("%s needs database", at)
		}
	}
	if db := string(c.Database); db != "" && !strings.HasPrefix(db, "postgres://") && !strings.HasPrefix(db, "postgresql://") && (!strings.HasPrefix(db, "sqlite:") || db == "sqlite:") {
		return configError("database: want sqlite:FILE or postgres://…")
	}
	entities := map[string]bool{}
	for i, e := range c.Entities {
		switch {
		case e.Name == "":
			return configError("entities[%d]: name is missing", i)
		case entities[e.Name]:
			return configError("entities[%d] %q: declared twice", i, e.Name)
		case e.From == "":
			return configError("entities[%d] %q: from is missing: the table", i, e.Name)
		case len(e.Columns) > 0 && len(e.Hide) > 0:
			return configError("entities[%d] %q: columns and hide exclude each other", i, e.Name)
		}
		entities[e.Name] = true
	}
	for i, q := range c.Queries {
		switch {
		case q.Name == "":
			return configError("queries[%d]: name is missing", i)
		case (q.From == "") == (q.Entity == ""):
			return configError("queries[%d] %q: want entity or from: the table", i, q.Name)
		case q.Entity != "" && !entities[q.Entity]:
			return configError("queries[%d] %q: there is no entity %q", i, q.Name, q.Entity)
		case strings.TrimSpace(q.Guard) == "":
			return configError("queries[%d] %q: guard is missing; want public or an expression", i, q.Name)
		case q.Limit < 0 || q.Limit > query.MaxLimit:
			return configError("queries[%d] %q: limit is %d, want 0 to %d", i, q.Name, q.Limit, query.MaxLimit)
		}
		for k, p := range q.Input {
			if p.Name == "" || p.Max < 0 {
				return configError("queries[%d] %q: input[%d] needs a name, and max must not be negative", i, q.Name, k)
			}
		}
	}
	return nil
}

// mayBeZero are the numbers and durations for which zero means none; others must be positive.
var mayBeZero = []string{"limits.subscriptions_per_tenant", "timing.presence_grace", "timing.drain_window", "auth.jwt.leeway"}

// atLeast and atMost are the least and the greatest values that make sense.
var atLeast = map[string]int64{"limits.queue_messages": 16}

var atMost = map[string]int64{
	"limits.frame_burst":    1 << 16,
	"limits.queue_messages": 1 << 20,
	"limits.queue_bytes":    1 << 30,
	"limits.frame_bytes":    1 << 29,
}

func checkNumbers(c *config) error {
	root := reflect.ValueOf(*c)
	for _, l := range leaves("", root.Type()) {
		if l.typ.Kind() != reflect.Int && l.typ.Kind() != reflect.Int64 {
			continue
		}
		v := root
		for name := range strings.SplitSeq(l.path, ".") {
			for i := range v.NumField() {
				if v.Type().Field(i).Tag.Get("koanf") == name {
					v = v.Field(i)
					break
				}
			}
		}
		n := v.Int()
		if n != 0 && n < atLeast[l.path] {
			return configError("%s is %v, want at least %d", l.path, v.Interface(), atLeast[l.path])
		}
		if most, bounded := atMost[l.path]; bounded && n > most {
			return configError("%s is %v, want at most %d", l.path, v.Interface(), most)
		}
		switch {
		case n < 0, n == 0 && !slices.Contains(mayBeZero, l.path):
			return configError("%s is %v, want more than zero", l.path, v.Interface())
		}
	}
	return nil
}

func checkAPIKeys(list string, keys []keyConfig) error {
	seen := map[secret]bool{}
	for i, k := range keys {
		at := fmt.Sprintf("%s[%d]", list, i)
		switch {
		case k.Name == "":
			return configError("%s: name is missing", at)
		case len(k.Key) < 16:
			return configError("%s (%s): the key has fewer than 16 bytes; want key or key_env", at, k.Name)
		case seen[k.Key]:
			return configError("%s (%s): another entry has the same key", at, k.Name)
		}
		seen[k.Key] = true
	}
	return nil
}

// print returns the configuration as YAML, without secrets.
func (c config) print() ([]byte, error) {
	if u, err := url.Parse(c.Auth.JWT.JWKSURL); err == nil && u.User != nil {
		u.User = url.User(hidden)
		c.Auth.JWT.JWKSURL = u.String()
	}
	return yamlv3.Marshal(c)
}

// nodeOptions are the options of the node, without authentication.
func (c config) nodeOptions() tidewire.Options {
	orNone := func(d time.Duration) time.Duration {
		if d == 0 {
			return -1
		}
		return d
	}
	t := c.Timing
	return tidewire.Options{
		Name:                c.Name,
		Build:               c.Build,
		AllowedOrigins:      c.AllowedOrigins,
		Compression:         c.Compression,
		Limits:              tidewire.Limits(c.Limits),
		PresenceGrace:       orNone(t.PresenceGrace),
		PresenceTTL:         t.PresenceTTL,
		HeartbeatInterval:   t.HeartbeatInterval,
		PingInterval:        t.PingInterval,
		PongTimeout:         t.PongTimeout,
		WriteTimeout:        t.WriteTimeout,
		HelloTimeout:        t.HelloTimeout,
		IdleTimeout:         t.IdleTimeout,
		CommandTimeout:      t.CommandTimeout,
		AckTimeout:          t.AckTimeout,
		ReauthorizeInterval: t.ReauthorizeInterval,
		DrainWindow:         orNone(t.DrainWindow),
	}
}
