package main

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkKeys reports the first key of a mapping that the struct does not have.
func checkKeys(path string, m map[string]any, t reflect.Type) error {
	fields := keysOf(t)
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		field, ok := fields[name]
		at := joinKey(path, name)
		if !ok {
			return configError("unknown key %s%s", at, suggestion(path, name, fields))
		}
		if err := checkValue(at, m[name], field); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(at string, value any, t reflect.Type) error {
	switch v := value.(type) {
	case map[string]any:
		if t.Kind() == reflect.Struct {
			return checkKeys(at, v, t)
		}
		return configError("%s is a mapping, want %s", at, kindName(t))
	case []any:
		if t.Kind() != reflect.Slice {
			return configError("%s is a list, want %s", at, kindName(t))
		}
		for i, e := range v {
			if err := checkValue(at+"["+strconv.Itoa(i)+"]", e, t.Elem()); err != nil {
				return err
			}
		}
	case nil: // an empty key keeps what it had
	default:
		if t.Kind() == reflect.Struct || t.Kind() == reflect.Slice {
			return configError("%s is a single value, want %s", at, kindName(t))
		}
	}
	return nil
}

func kindName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration"
	case t.Kind() == reflect.Struct:
		return "a mapping"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a number"
	}
	return "a text"
}

// keysOf returns the keys of a struct with their types.
func keysOf(t reflect.Type) map[string]reflect.Type {
	keys := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		keys[t.Field(i).Tag.Get("koanf")] = t.Field(i).Type
	}
	return keys
}

func joinKey(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// suggestion names the nearest key, if one is near: in the same mapping, or of the same name elsewhere.
func suggestion(path, name string, fields map[string]reflect.Type) string {
	best, least := "", 3
	for _, field := range sortedKeys(fields) {
		if d := distance(name, field); d < least {
			best, least = field, d
		}
	}
	if best != "" {
		return "; did you mean " + joinKey(path, best) + "?"
	}
	for _, at := range leaves("", reflect.TypeFor[config]()) { // in another mapping
		last := at.path[strings.LastIndexByte(at.path, '.')+1:]
		if d := distance(name, last); d < least {
			best, least = at.path, d
		}
	}
	if best != "" {
		return "; did you mean " + best + "?"
	}
	return "; the keys here are " + strings.Join(sortedKeys(fields), ", ")
}

func sortedKeys(m map[string]reflect.Type) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// distance is the number of letters to change, insert or delete between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// leaf is a key with a single value or a list of texts: what the environment can set.
type leaf struct {
	path string
	typ  reflect.Type
}

// leaves returns the leaves of a struct in order.
func leaves(path string, t reflect.Type) []leaf {
	var out []leaf
	for i := range t.NumField() {
		f := t.Field(i)
		at := joinKey(path, f.Tag.Get("koanf"))
		switch {
		case f.Type.Kind() == reflect.Struct:
			out = append(out, leaves(at, f.Type)...)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct: // only in a file
		default:
			out = append(out, leaf{at, f.Type})
		}
	}
	return out
}

// envName is the variable that sets a key.
func envName(path string) string {
	return "TIDEWIRE_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// envValues reads the variables that set keys. An empty one is as good as none.
func envValues(getenv func(string) string) (map[string]any, error) {
	values := map[string]any{}
	for _, l := range leaves("", reflect.TypeFor[config]()) {
		text := getenv(envName(l.path))
		if text == "" {
			continue
		}
		var value any = text
		var err error
		switch {
		case l.typ == reflect.TypeFor[time.Duration]():
		case l.typ.Kind() == reflect.Int:
			value, err = strconv.Atoi(text)
		case l.typ.Kind() == reflect.Bool:
			value, err = strconv.ParseBool(text)
		case l.typ.Kind() == reflect.Slice:
			list := []any{}
			for part := range strings.SplitSeq(text, ",") {
				list = append(list, strings.TrimSpace(part))
			}
			value = list
		}
		if err != nil { // which may quote the value
			return nil, configError("%s in the environment is not %s", envName(l.path), kindName(l.typ))
		}
		values[l.path] = value
	}
	return values, nil
}

// otherEnv are variables of other commands and of tests.
var otherEnv = []string{"TIDEWIRE_CONFIG", "TIDEWIRE_URL", "TIDEWIRE_KEY", "TIDEWIRE_TOKEN", "TIDEWIRE_CHROMIUM"}

// unknownEnv returns the variables that begin like ours and set nothing, each with the nearest that does, if one is near. known are those that the configuration itself names, for secrets.
func unknownEnv(environ []string, known []string) map[string]string {
	names := slices.Concat(otherEnv, known)
	for _, l := range leaves("", reflect.TypeFor[config]()) {
		names = append(names, envName(l.path))
	}
	unknown := map[string]string{}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "TIDEWIRE_") || strings.HasPrefix(name, "TIDEWIRE_TEST_") || slices.Contains(names, name) {
			continue
		}
		near, least := "", 4
		for _, n := range names {
			if d := distance(name, n); d < least {
				near, least = n, d
			}
		}
		unknown[name] = near
	}
	return unknown
}
