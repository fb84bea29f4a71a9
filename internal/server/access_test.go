package server

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

func TestToken(t *testing.T) {
	s := newSite(t, "s3cret")
	for name, c := range map[string]struct {
		headers []string
		ok      bool
	}{
		"right":         {[]string{"Authorization", "Bearer s3cret"}, true},
		"scheme's case": {[]string{"Authorization", "bearer s3cret"}, true},
		"none":          {nil, false},
		"empty":         {[]string{"Authorization", ""}, false},
		"no scheme":     {[]string{"Authorization", "s3cret"}, false},
		"other scheme":  {[]string{"Authorization", "Basic s3cret"}, false},
		"short":         {[]string{"Authorization", "Bearer s3cre"}, false},
		"long":          {[]string{"Authorization", "Bearer s3cret1"}, false},
		"not ASCII":     {[]string{"Authorization", "Bearer s3crét"}, false},
		"two spaces":    {[]string{"Authorization", "Bearer  s3cret"}, false},
		"elsewhere":     {[]string{"X-Token", "s3cret"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			resp, text := s.ask(t, "GET", "/version", "", c.headers...)
			if c.ok {
				if resp.StatusCode != 200 {
					t.Errorf("status %s", resp.Status)
				}
				return
			}
			wantError(t, resp, text, 401, "unauthorized", "missing or wrong token")
			if strings.Contains(text, "hint") {
				t.Errorf("the refusal gives a hint: %s", text)
			}
			if resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Error("no WWW-Authenticate header")
			}
		})
	}
	t.Run("in the query", func(t *testing.T) {
		resp, text := s.ask(t, "GET", "/version?token=s3cret", "")
		wantError(t, resp, text, 401, "unauthorized", "missing or wrong token")
	})
	t.Run("unknown routes tell nothing either", func(t *testing.T) {
		resp, text := s.ask(t, "GET", "/nothing", "")
		wantError(t, resp, text, 401, "unauthorized", "missing or wrong token")
	})
	t.Run("two headers", func(t *testing.T) {
		req, _ := http.NewRequest("GET", s.tcp+"/version", nil)
		req.Header["Authorization"] = []string{"Bearer s3cret", "Bearer s3cret"}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 401 {
			t.Errorf("status %s", resp.Status)
		}
	})
	t.Run("oversize", func(t *testing.T) {
		req, _ := http.NewRequest("GET", s.tcp+"/version", nil)
		req.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 10<<20))
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return // the server hung up before it had read it all
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("status %s", resp.Status)
		}
	})
	t.Run("health needs none", func(t *testing.T) {
		resp, text := s.ask(t, "GET", "/healthz", "", "Host", "forkd.example")
		if resp.StatusCode != 200 || text != `{"status":"ok"}`+"\n" {
			t.Errorf("%s %q", resp.Status, text)
		}
	})
	t.Run("any host with a token", func(t *testing.T) {
		resp, _ := s.ask(t, "GET", "/version", "", "Host", "forkd.example", "Authorization", "Bearer s3cret")
		if resp.StatusCode != 200 {
			t.Errorf("status %s", resp.Status)
		}
	})
}

func TestTokenOnUnixSocket(t *testing.T) {
	s := newSite(t, "s3cret")
	ctx := context.Background()
	if _, err := newClient(t, s.unix, "").Version(ctx); err != nil {
		t.Errorf("without a token: %v", err)
	}
	if _, err := newClient(t, s.unix, "s3cret").Version(ctx); err != nil {
		t.Errorf("with the token: %v", err)
	}
	_, err := newClient(t, s.unix, "wrong").Version(ctx)
	if !client.IsCode(err, api.ErrorCodeUnauthorized) {
		t.Errorf("with a wrong token: %v", err)
	}
}

// TestBrowser: without a token, a web page must not reach the daemon through
// its visitor's browser.
func TestBrowser(t *testing.T) {
	s := newSite(t, "")
	for name, c := range map[string]struct {
		method  string
		headers []string
		ok      bool
	}{
		"plain":                     {"POST", nil, true},
		"localhost":                 {"POST", []string{"Host", "localhost:8889"}, true},
		"other loopback address":    {"POST", []string{"Host", "127.1.2.3"}, true},
		"IPv6":                      {"POST", []string{"Host", "[::1]:8889"}, true},
		"rebound name":              {"POST", []string{"Host", "evil.example:8889"}, false},
		"rebound name, reading":     {"GET", []string{"Host", "evil.example:8889"}, false},
		"name that begins right":    {"GET", []string{"Host", "localhost.evil.example"}, false},
		"address that begins right": {"GET", []string{"Host", "127.0.0.1.evil.example"}, false},
		"public address":            {"GET", []string{"Host", "192.0.2.1"}, false},
		"unspecified address":       {"GET", []string{"Host", "0.0.0.0"}, false},
		"cross-origin page":         {"POST", []string{"Origin", "https://evil.example"}, false},
		"opaque origin":             {"POST", []string{"Origin", "null"}, false},
		"cross-site fetch":          {"POST", []string{"Sec-Fetch-Site", "cross-site"}, false},
		"own page":                  {"POST", []string{"Host", "localhost:1", "Origin", "http://localhost:1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			body := ""
			if c.method == "POST" {
				body = `{"tag":"pyagent"}`
			}
			resp, text := s.ask(t, c.method, "/v1/sandboxes", body, c.headers...)
			if c.ok {
				if resp.StatusCode >= 300 {
					t.Errorf("%s %s", resp.Status, text)
				}
				return
			}
			wantError(t, resp, text, 403, "forbidden", "")
		})
	}
}
