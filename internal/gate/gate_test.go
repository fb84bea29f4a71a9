package gate

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:80": true, "localhost": true, "LOCALHOST:1": true, "::1": true, "[::1]:80": true,
		"[::ffff:127.0.0.1]:80": true, "127.255.255.254": true,
		"": false, ":8889": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1": false, "example.com": false,
		"localhost.example.com": false, "1270.0.1": false, "127.1": false,
	} {
		if got := IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %v", host, got)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		token  string
		header http.Header
		status int
	}{
		"bearer":                {"s3cret", http.Header{"Authorization": {"Bearer s3cret"}}, 0},
		"key":                   {"s3cret", http.Header{KeyHeader: {"s3cret"}}, 0},
		"key beside another":    {"s3cret", http.Header{KeyHeader: {"s3cret"}, "Authorization": {"Bearer other"}}, 0},
		"wrong key":             {"s3cret", http.Header{KeyHeader: {"s3cret1"}}, 401},
		"empty key":             {"s3cret", http.Header{KeyHeader: {""}}, 401},
		"two keys":              {"s3cret", http.Header{KeyHeader: {"s3cret", "s3cret"}}, 401},
		"key as bearer scheme":  {"s3cret", http.Header{KeyHeader: {"Bearer s3cret"}}, 401},
		"nothing":               {"s3cret", http.Header{}, 401},
		"any key without token": {"", http.Header{KeyHeader: {"e2b_00"}}, 0},
		"no key without token":  {"", http.Header{}, 0},
		"page without token":    {"", http.Header{"Origin": {"https://evil.example"}}, 403},
		"page with token":       {"s3cret", http.Header{"Origin": {"https://app.example"}, KeyHeader: {"s3cret"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "http://127.0.0.1:8889/sandboxes", nil)
			r.Header = c.header
			err := New(c.token).Check(r)
			status := 0
			if no, ok := err.(*Refusal); ok {
				status = no.Status
			}
			if status != c.status {
				t.Errorf("got %v, want status %d", err, c.status)
			}
		})
	}
}

func TestStrip(t *testing.T) {
	g := New("s3cret")
	h := http.Header{"Authorization": {"Bearer s3cret"}, KeyHeader: {"s3cret"}, "X-Other": {"s3cret"}}
	g.Strip(h)
	if len(h) != 1 {
		t.Errorf("left: %v", h)
	}
	h = http.Header{"Authorization": {"Bearer app"}, KeyHeader: {"app"}}
	g.Strip(h)
	if len(h) != 2 {
		t.Errorf("the guest's own are gone: %v", h)
	}
	New("").Strip(h)
	if len(h) != 2 {
		t.Errorf("without a token: %v", h)
	}
}
