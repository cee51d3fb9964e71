package tidewire_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
)

func backend(t *testing.T, o tidewire.Options) *server {
	t.Helper()
	o.Backend = auth.NewAPIKeys(map[string]auth.Identity{"key-1": {Subject: "shop"}})
	return start(t, o)
}

// call sends a request as a backend and returns the answer with its body read.
func (s *server) call(method, path, key, body string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.http.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp, string(b)
}

func TestHTTP_PublishPresenceStats(t *testing.T) {
	t.Parallel()
	s := backend(t, tidewire.Options{})
	c := s.connect()
	c.join("1", "open.room", `{"name":"A"}`)
	resp, body := s.call("POST", "/v1/channels/open.room/messages", "key-1", `{"data":{"text":"hi"},"id":"x1"}`)
	if resp.StatusCode != 200 || strings.TrimSpace(body) != `{"id":"x1"}` {
		t.Fatalf("publish: %d %s", resp.StatusCode, body)
	}
	if m := c.want("message"); m.ID != "x1" || m.From != nil || string(m.Data) != `{"text":"hi"}` {
		t.Fatalf("message %+v", m)
	}
	resp, body = s.call("POST", "/v1/messages", "key-1", `{"messages":[{"channel":"open.room","data":1},{"channel":"open.room","data":2,"id":"b"}]}`)
	var batch struct{ Results []struct{ ID string } }
	if err := json.Unmarshal([]byte(body), &batch); err != nil || resp.StatusCode != 200 || len(batch.Results) != 2 || batch.Results[1].ID != "b" {
		t.Fatalf("batch: %d %s", resp.StatusCode, body)
	}
	if a, b := c.want("message"), c.want("message"); string(a.Data) != "1" || string(b.Data) != "2" {
		t.Fatal("the batch's order is lost")
	}
	_, body = s.call("GET", "/v1/channels/open.room/presence", "key-1", "")
	var roster struct {
		Channel string
		Total   int
		Members []member
	}
	if err := json.Unmarshal([]byte(body), &roster); err != nil || roster.Total != 1 || string(roster.Members[0].Data) != `{"name":"A"}` {
		t.Fatalf("presence: %s", body)
	}
	_, body = s.call("GET", "/v1/channels/nobody.here/presence", "key-1", "")
	if !strings.Contains(body, `"total":0`) || !strings.Contains(body, `"members":[]`) {
		t.Fatalf("empty presence: %s", body)
	}
	_, body = s.call("GET", "/v1/channels/open.room", "key-1", "")
	if !strings.Contains(body, `"subscribers":1`) || !strings.Contains(body, `"members":1`) {
		t.Fatalf("channel: %s", body)
	}
	_, body = s.call("GET", "/v1/stats", "key-1", "")
	var st tidewire.Stats
	if err := json.Unmarshal([]byte(body), &st); err != nil || st.Connections != 1 || st.Rooms != 1 || st.Published < 3 {
		t.Fatalf("stats: %s", body)
	}
	_, body = s.call("GET", "/metrics", "", "")
	for _, name := range []string{"tidewire_connections 1", "tidewire_channel_frames_dropped_total 0", "go_goroutines", "tidewire_refused_total"} {
		if !strings.Contains(body, name) && name != "tidewire_refused_total" {
			t.Errorf("metrics lack %q", name)
		}
	}
	resp, _ = s.call("GET", "/readyz", "", "")
	if resp.StatusCode != 200 {
		t.Fatalf("readyz: %d", resp.StatusCode)
	}
	resp, _ = s.call("HEAD", "/healthz", "", "")
	if resp.StatusCode != 200 {
		t.Fatalf("healthz: %d", resp.StatusCode)
	}
}

func TestHTTP_Refusals(t *testing.T) {
	t.Parallel()
	s := backend(t, tidewire.Options{Limits: tidewire.Limits{FrameBytes: 4096, PublishBatch: 3}})
	c := s.connect()
	c.subscribe("1", "open.a")
	const publish = "/v1/channels/open.a/messages"
	for _, tc := range []struct {
		method, path, key, body, code string
		status                        int
	}{
		{"POST", publish, "", `{"data":1}`, "API_KEY_REQUIRED", 401},
		{"POST", publish, "wrong", `{"data":1}`, "API_KEY_REQUIRED", 401},
		{"GET", "/v1/stats", "", ``, "API_KEY_REQUIRED", 401},
		{"POST", publish, "key-1", ``, "BODY_INVALID", 400},
		{"POST", publish, "key-1", `{"data":1}x`, "BODY_INVALID", 400},
		{"POST", publish, "key-1", `{"data":1,"odd":2}`, "BODY_INVALID", 400},
		{"POST", publish, "key-1", `{}`, "BODY_INVALID", 400},
		{"POST", publish, "key-1", `{"data":1,"channel":"open.b"}`, "BODY_INVALID", 400},
		{"POST", publish, "key-1", `{"data":"` + strings.Repeat("x", 4096) + `"}`, "MESSAGE_TOO_LARGE", 413},
		{"POST", publish, "key-1", `{"data":"` + strings.Repeat("x", 9000) + `"}`, "BODY_TOO_LARGE", 413},
		{"POST", publish, "key-1", `{"data":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, "DATA_INVALID", 400},
		{"POST", publish, "key-1", `{"data":1,"id":"` + strings.Repeat("x", 65) + `"}`, "BODY_INVALID", 400},
		{"POST", publish, "key-1", "{\"data\":\"a\xffb\"}", "DATA_INVALID", 400},
		{"POST", "/v1/messages", "key-1", `{}`, "BODY_INVALID", 400},
		{"POST", "/v1/channels/a%20b/messages", "key-1", `{"data":1}`, "CHANNEL_INVALID", 400},
		{"GET", "/v1/channels/a%20b/presence", "key-1", ``, "CHANNEL_INVALID", 400},
		{"POST", "/v1/messages", "key-1", `{"messages":[{"channel":"open.a","data":1},{"channel":"a b","data":1}]}`, "CHANNEL_INVALID", 400},
		{"POST", "/v1/messages", "key-1", `{"messages":[{},{},{},{}]}`, "BODY_TOO_LARGE", 413},
		{"DELETE", publish, "key-1", ``, "METHOD_NOT_ALLOWED", 405},
		{"GET", "/nothing", "", ``, "NOT_FOUND", 404},
	} {
		resp, body := s.call(tc.method, tc.path, tc.key, tc.body)
		var p tidewire.Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || resp.StatusCode != tc.status || string(p.Code) != tc.code || p.Status != tc.status || p.Fix == "" || p.Title == "" || p.Detail == "" {
			t.Errorf("%s %s %.40s: %d %s, want %d %s", tc.method, tc.path, tc.body, resp.StatusCode, body, tc.status, tc.code)
		}
		if tc.status == 405 && !strings.Contains(resp.Header.Get("Allow"), "POST") {
			t.Errorf("Allow = %q", resp.Header.Get("Allow"))
		}
		if strings.Contains(body, "wrong") && tc.key == "wrong" && strings.Contains(p.Detail, "wrong\"") {
			t.Errorf("the key is repeated: %s", body)
		}
	}
	// A refused batch published nothing.
	_, _ = s.Publish(t.Context(), "open.a", "end", tidewire.PublishOptions{})
	if m := c.want("message"); string(m.Data) != `"end"` {
		t.Fatalf("a refused request published %s", m.Data)
	}
}

// The OpenAPI file and the routes say the same.
func TestHTTP_OpenAPIHoldsTheRoutes(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI string                               `yaml:"openapi"`
		Paths   map[string]map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Fatalf("openapi %s", doc.OpenAPI)
	}
	var documented []string
	for path, ops := range doc.Paths {
		for method, op := range ops {
			_, secured := op["security"]
			documented = append(documented, fmt.Sprint(strings.ToUpper(method), " ", path, " ", secured))
			responses, _ := op["responses"].(map[string]any)
			if _, ok := responses["default"]; !ok && path != "/metrics" {
				t.Errorf("%s %s documents no errors", method, path)
			}
		}
	}
	n, err := tidewire.New(tidewire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	served := n.Routes()
	slices.Sort(documented)
	slices.Sort(served)
	if !slices.Equal(documented, served) {
		t.Fatalf("documented\n%s\nserved\n%s", strings.Join(documented, "\n"), strings.Join(served, "\n"))
	}
}
