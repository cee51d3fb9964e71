package testenv

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Written holds a committed file that is written from the code, such as the vectors of spec/, against the code. With update it writes the file. A value that is no []byte is written as indented JSON.
func Written(t testing.TB, path string, value any, update bool) {
	t.Helper()
	want, ok := value.([]byte)
	if !ok {
		raw, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		want = append(raw, '\n')
	}
	if update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, have) {
		t.Fatalf("%s is not what the code says; run go test with -update in this package (-code +file):\n%s", path, cmp.Diff(string(want), string(have)))
	}
}
