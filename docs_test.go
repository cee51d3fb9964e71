package tidewire_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// namedTests looks for every test that a page names, and returns their number.
func namedTests(t *testing.T, text string) int {
	t.Helper()
	named := regexp.MustCompile("`([a-z0-9_/.-]+): ([^`]+)`").FindAllStringSubmatch(text, -1)
	for _, m := range named {
		src, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(src), "func "+m[2]+"(") && !strings.Contains(string(src), "'"+m[2]+"'") {
			t.Errorf("%s has no test %s", m[1], m[2])
		}
	}
	return len(named)
}

// P51: every guarantee names a test that exists.
func TestP51_GuaranteesNameTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := namedTests(t, string(text)); n < 20 {
		t.Fatalf("%d tests are named", n)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "- ") && !strings.HasPrefix(line, "- Not promised") && !strings.Contains(line, "Test") && !strings.Contains(line, ".test.ts") {
			t.Errorf("no test shows %q", line)
		}
	}
}

// Every known case of live queries has a row with a test that exists, or with a limit and its reason.
func TestLimitsNameTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := namedTests(t, string(text)); n < 60 {
		t.Fatalf("%d tests are named", n)
	}
	want := map[string]bool{}
	for kind, n := range map[string]int{"U": 12, "P": 46} {
		for i := range n {
			want[fmt.Sprint(kind, i+1)] = true
		}
	}
	row := regexp.MustCompile(`(?m)^\| ((?:[UP][0-9]+(?:, )?)+) \| .* \| (.*) \|$`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(m[2], ": Test") && !strings.HasPrefix(m[2], "**limit**") && !strings.HasPrefix(m[2], "**not built**: ") {
			t.Errorf("no test shows %s", m[1])
		}
		for _, id := range strings.Split(m[1], ", ") {
			delete(want, id)
		}
	}
	if len(want) != 0 {
		t.Errorf("no row has %v", want)
	}
}
