package tidewire_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tidewire/tidewire"

// rules says which packages of this module each may import. Imports point one way; only cmd/tidewire imports everything.
var rules = map[string][]string{
	"wire":              {},
	"hub":               {},
	"auth":              {"internal/backoff"},
	"internal/backoff":  {},
	"internal/budget":   {},
	"internal/load":     {},
	"presence":          {"wire"},
	"stream":            {},
	"stream/streamtest": {"stream"},
	"sqlite":            {"stream", "feed", "row"},
	"object":            {"stream"},
	"ackbus":            {"wire"},
	"row":               {},
	"query":             {"row"},
	"live":              {"feed", "query", "row"},
	"feed":              {"row"},
	"postgres":          {"feed", "row", "internal/backoff"},
	"feed/feedtest":     {"feed", "row"},
	"internal/testenv":  {},
	"ws":                {"hub", "auth", "internal/backoff", "internal/budget"},
	"client":            {"wire", "presence", "internal/backoff", "row"},
	"":                  {"hub", "ws", "wire", "presence", "auth", "internal/budget", "stream", "object", "live", "feed", "query"},
	"demo":              {"", "auth", "stream", "sqlite", "query", "row"},
}

// pure packages stay on the standard library.
var pure = []string{"wire", "presence", "stream", "ackbus", "row", "query", "feed", "live", "internal/backoff", "internal/budget"}

// drivers are known to cmd/tidewire, and to one package at most.
var drivers = map[string]string{
	"github.com/alecthomas/kong":    "cmd/tidewire",
	"github.com/knadh/koanf":        "cmd/tidewire",
	"cel.dev/cel-go":                "cmd/tidewire",
	"github.com/ncruces/go-sqlite3": "sqlite",
	"github.com/jackc/pgx":          "postgres",
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "bench" || name == "node_modules" || name == "testdata" || strings.HasPrefix(name, ".") && name != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		pkg := path.Dir(filepath.ToSlash(file))
		if pkg == "." {
			pkg = ""
		}
		if strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "examples/") || strings.HasPrefix(pkg, "e2e") {
			return nil
		}
		allowed, known := rules[pkg]
		if !known {
			t.Errorf("%s: no import rule for package %q", file, pkg)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if rest, ours := strings.CutPrefix(imported, module); ours {
				if rest = strings.TrimPrefix(rest, "/"); !slices.Contains(allowed, rest) {
					t.Errorf("%s: package %q may not import %q", file, pkg, rest)
				}
				continue
			}
			if slices.Contains(pure, pkg) && strings.Contains(strings.Split(imported, "/")[0], ".") {
				t.Errorf("%s: a pure package imports %s", file, imported)
			}
			for driver, owner := range drivers {
				if strings.HasPrefix(imported, driver) && pkg != owner {
					t.Errorf("%s: only %s may import %s", file, owner, imported)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
