package tidewire_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// P51: every guarantee names a test that exists.
func TestP51_GuaranteesNameTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9_/.-]+): ([^`]+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 20 {
		t.Fatalf("%d tests are named", len(named))
	}
	for _, m := range named {
		src, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(src), "func "+m[2]+"(") && !strings.Contains(string(src), "'"+m[2]+"'") {
			t.Errorf("%s has no test %s", m[1], m[2])
		}
	}
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "- ") && !strings.HasPrefix(line, "- Not promised") && !strings.Contains(line, "Test") && !strings.Contains(line, ".test.ts") {
			t.Errorf("no test shows %q", line)
		}
	}
}
