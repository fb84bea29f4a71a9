package control

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

func TestCreate(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		life       time.Duration
		secured    bool
	}{
		"v1":                  {"/sandboxes", `{"templateID":"base"}`, 15 * time.Second, false},
		"v1 secure":           {"/sandboxes", `{"templateID":"base","secure":true,"timeout":300}`, 300 * time.Second, true},
		"v2":                  {"/v2/sandboxes", `{"templateID":"base"}`, 300 * time.Second, true},
		"v2 with a life":      {"/v2/sandboxes", `{"templateID":"code-interpreter-v1","timeout":60}`, time.Minute, true},
		"v2 says secure":      {"/v2/sandboxes", `{"templateID":"","secure":true}`, 300 * time.Second, true},
		"by tag":              {"/v2/sandboxes", `{"templateID":"pyagent"}`, 300 * time.Second, true},
		"by tag, with a tag":  {"/v2/sandboxes", `{"templateID":"team/pyagent:latest"}`, 300 * time.Second, true},
		"options of nothing":  {"/v2/sandboxes", `{"templateID":"base","mcp":null,"iam":{"tokens":{}},"volumeMounts":[]}`, 300 * time.Second, true},
		"the options of SDKs": {"/sandboxes", `{"templateID":"base","metadata":{"a":"b"},"envVars":{"K":"v"},"timeout":300,"secure":true,"allow_internet_access":true,"autoPause":false,"network":{"allowPublicTraffic":true}}`, 300 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			var made sandboxJSON
			s.want(t, http.StatusCreated, "POST", c.path, c.body, &made)
			info, err := s.Sandbox(made.SandboxID)
			if err != nil {
				t.Fatal(err)
			}
			if life := info.ExpiresAt.Sub(info.CreatedAt); life != c.life {
				t.Errorf("it lives for %s, want %s", life, c.life)
			}
			if (len(made.EnvdToken) == 64) != c.secured || made.EnvdToken != s.record(t, made.SandboxID).EnvdToken {
				t.Errorf("envd token %q", made.EnvdToken)
			}
			if made.ClientID == "" || made.EnvdVersion != "0.6.4" || made.TemplateID != "pyagent" || made.TrafficToken != nil {
				t.Errorf("made %+v", made)
			}
			if made.Domain == nil || *made.Domain != "localhost:8889" {
				t.Errorf("domain %v", made.Domain)
			}
		})
	}
}

func TestCreateOptions(t *testing.T) {
	s := newSite(t)
	made := s.create(t, `{"templateID":"base","metadata":{"user":"ann"},"envVars":{"KEY":"v"},"autoPause":true,"autoResume":{"enabled":true},
		"network":{"allowPublicTraffic":false,"denyOut":["0.0.0.0/0"],"allowOut":["*.example.com"],"maskRequestHost":"localhost:${PORT}","httpsPorts":[8443]}}`)
	info, err := s.Sandbox(made.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	if info.OnTimeout != sandbox.PauseOnTimeout || !info.AutoResume || info.Metadata["user"] != "ann" || s.envs[info.ID]["KEY"] != "v" {
		t.Errorf("the domain was told %+v and %v", info, s.envs[info.ID])
	}
	rec := s.record(t, made.SandboxID)
	if !rec.Private || made.TrafficToken == nil || rec.TrafficToken != *made.TrafficToken || rec.MaskHost != "localhost:${PORT}" || rec.HTTPSPorts[0] != 8443 {
		t.Errorf("remembered %+v", rec)
	}
	var told detail
	s.want(t, 200, "GET", "/sandboxes/"+made.SandboxID, "", &told)
	if !strings.Contains(string(told.Network), `"allowPublicTraffic":false`) || told.Lifecycle != (lifecycle{true, sandbox.PauseOnTimeout}) {
		t.Errorf("told %+v %s", told, told.Network)
	}
	if told.CPUCount != 1 || told.MemoryMB != 512 || told.DiskSizeMB != 4096 || told.State != "running" || told.Metadata["user"] != "ann" {
		t.Errorf("told %+v", told)
	}
}

// TestRefusals: what is wrong or cannot be honoured is said, and nothing is made.
func TestRefusals(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		path, body string
		status     int
		message    string
	}{
		{"/sandboxes", ``, 400, "empty"},
		{"/sandboxes", `{`, 400, "ends too early"},
		{"/sandboxes", `[]`, 400, "must be a JSON object"},
		{"/sandboxes", `{"templateID":5}`, 400, "templateID: must be a string"},
		{"/sandboxes", `{"templateID":"base","timeout":0}`, 400, "timeout: must be 1 to"},
		{"/sandboxes", `{"templateID":"base","timeout":-1}`, 400, "timeout: must be 1 to"},
		{"/v2/sandboxes", `{"templateID":"base","timeout":1e308}`, 400, "timeout"},
		{"/v2/sandboxes", `{"templateID":"base","timeout":9223372036854775808}`, 400, "timeout"},
		{"/v2/sandboxes", `{"templateID":"base","timeout":1.5}`, 400, "timeout"},
		{"/v2/sandboxes", `{"templateID":"base","timeout":"5"}`, 400, "timeout"},
		{"/v2/sandboxes", `{"templateID":"base","timeout":40000000}`, 400, "timeout"},
		{"/v2/sandboxes", `{"templateID":"base","secure":false}`, 400, "always secured"},
		{"/v2/sandboxes", `{"templateID":"no-such"}`, 404, "no-such"},
		{"/v2/sandboxes", `{"templateID":"base:v7"}`, 404, "v7"},
		{"/v2/sandboxes", `{"templateID":"../etc"}`, 404, "etc"},
		{"/v2/sandboxes", `{"templateID":"a b"}`, 400, "malformed name"},
		{"/v2/sandboxes", `{"templateID":"base","tiemout":5}`, 400, `unknown field`},
		{"/v2/sandboxes", `{"templateID":"base","mcp":{"x":{}}}`, 501, "mcp"},
		{"/v2/sandboxes", `{"templateID":"base","iam":{"tokens":{"a":{"audience":"x","tokenType":"y"}}}}`, 501, "iam"},
		{"/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"a","path":"/a"}]}`, 501, "volumeMounts"},
		{"/v2/sandboxes", `{"templateID":"base","autoPauseMemory":false}`, 501, "autoPauseMemory"},
		{"/v2/sandboxes", `{"templateID":"base","network":{"egressProxy":{"address":"a:1"}}}`, 501, "egressProxy"},
		{"/v2/sandboxes", `{"templateID":"base","network":{"rules":{"a.com":[{}]}}}`, 501, "rules"},
		{"/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["example.com"]}}`, 400, "denyOut"},
		{"/v2/sandboxes", `{"templateID":"base","network":{"allowOut":[""]}}`, 400, "allowOut"},
		{"/v2/sandboxes", `{"templateID":"base","network":{"httpsPorts":[49983]}}`, 400, "httpsPorts"},
		{"/v2/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"a b"}}`, 400, "maskRequestHost"},
		{"/v2/sandboxes", `{"templateID":"base","metadata":{"a":1}}`, 400, "metadata"},
		{"/v2/sandboxes", `{"templateID":"base"}` + strings.Repeat(" ", maxLargeBody), 413, "limit"},
	} {
		resp, text := s.ask(t, "POST", c.path, c.body)
		if resp.StatusCode != c.status || !strings.Contains(text, c.message) {
			t.Errorf("%.80s: status %d, want %d with %q: %s", c.body, resp.StatusCode, c.status, c.message, text)
		}
	}
	if n := len(s.Sandboxes()); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
}

// TestClientGoesAway: a sandbox that nobody has learnt of does not stay.
func TestClientGoesAway(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.onFork = cancel
	r := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1:8889/v2/sandboxes", strings.NewReader(`{"templateID":"base"}`))
	s.api.ServeHTTP(httptest.NewRecorder(), r)
	if s.next != 1 || len(s.Sandboxes()) != 0 {
		t.Errorf("%d were made, %v stay", s.next, s.Sandboxes())
	}
}

// TestFailures: what the domain says comes through with its status.
func TestFailures(t *testing.T) {
	for code, status := range map[sandbox.Code]int{
		sandbox.CapacityExceeded: 429, sandbox.Unavailable: 503, sandbox.NoSpace: 507, sandbox.NotBootable: 409,
		sandbox.Timeout: 504, sandbox.Internal: 500, "unheard of": 500,
	} {
		s := newSite(t)
		s.forkErr = &sandbox.Error{Code: code, Message: "no luck", Hint: "wait", Err: errBroken}
		resp, text := s.ask(t, "POST", "/sandboxes", `{"templateID":"base"}`)
		if resp.StatusCode != status || !strings.Contains(text, "no luck: broken (wait)") {
			t.Errorf("%s: status %d, want %d: %s", code, resp.StatusCode, status, text)
		}
	}
}
