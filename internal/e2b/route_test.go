package e2b

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestParseHost(t *testing.T) {
	for host, want := range map[string]any{
		"3000-sb0a1b.example.com":      address{"sb0a1b", 3000, true},
		"3000-sb0a1b.example.com:8889": address{"sb0a1b", 3000, true},
		"49983-SB0A1B.LOCALHOST":       address{"sb0a1b", 49983, true},
		"1-x.y":                        address{"x", 1, true},
		"65535-x.y":                    address{"x", 65535, true},
		"0-x.y":                        "not a port",
		"65536-x.y":                    "not a port",
		"99999999999999999999-x.y":     "not a port",
		"3000-sb0a1b":                  nil, // no domain: a machine's name
		"3000-sb0a1b.":                 nil,
		"3000-sb-0a.example.com":       nil,
		"sb0a1b-3000.example.com":      nil,
		"-sb.example.com":              nil,
		"3000-.example.com":            nil,
		"3000-" + strings.Repeat("a", 64) + ".example.com": nil,
		"3000-ünï.example.com":                             nil,
		"127.0.0.1:8889":                                   nil,
		"localhost":                                        nil,
		"[::1]:80":                                         nil,
		"":                                                 nil,
		"sandbox.e2b.app":                                  nil,
		"a.3000-sb0a1b.com":                                nil,
	} {
		a, err := parseHost(host)
		switch want := want.(type) {
		case address:
			if err != nil || a != want {
				t.Errorf("%q: %+v %v, want %+v", host, a, err, want)
			}
		case string:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %+v %v, want %q", host, a, err, want)
			}
		default:
			if !errors.Is(err, errNoAddress) {
				t.Errorf("%q: %+v %v", host, a, err)
			}
		}
	}
}

func TestAddressOf(t *testing.T) {
	for name, c := range map[string]struct {
		host   string
		header http.Header
		want   address
		err    string
	}{
		"headers":           {"127.0.0.1", http.Header{idHeader: {"sb1"}, portHeader: {"80"}}, address{"sb1", 80, false}, ""},
		"host over headers": {"81-sb2.x.y", http.Header{idHeader: {"sb1"}, portHeader: {"80"}}, address{"sb2", 81, true}, ""},
		"neither":           {"127.0.0.1", nil, address{}, errNoAddress.Error()},
		"id only":           {"127.0.0.1", http.Header{idHeader: {"sb1"}}, address{}, "once each"},
		"port only":         {"127.0.0.1", http.Header{portHeader: {"80"}}, address{}, "once each"},
		"two ids":           {"127.0.0.1", http.Header{idHeader: {"sb1", "sb2"}, portHeader: {"80"}}, address{}, "once each"},
		"empty id":          {"127.0.0.1", http.Header{idHeader: {""}, portHeader: {"80"}}, address{}, "not the id"},
		"path as id":        {"127.0.0.1", http.Header{idHeader: {"../x"}, portHeader: {"80"}}, address{}, "not the id"},
		"sign":              {"127.0.0.1", http.Header{idHeader: {"sb1"}, portHeader: {"+80"}}, address{}, "not a port"},
		"word":              {"127.0.0.1", http.Header{idHeader: {"sb1"}, portHeader: {"http"}}, address{}, "not a port"},
		"bad host":          {"0-sb1.x.y", http.Header{idHeader: {"sb1"}, portHeader: {"80"}}, address{}, "not a port"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Host = c.host
			if c.header != nil {
				r.Header = c.header
			}
			a, err := addressOf(r)
			if c.err == "" && (err != nil || a != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%+v %v", a, err)
			}
		})
	}
}

// FuzzAddress: what is taken for an address could be one.
func FuzzAddress(f *testing.F) {
	f.Add("3000-sb0a1b.example.com:80", "sb1", "80")
	f.Add("[::1]:80", "", "")
	f.Add("0-x.y", "a-b", "+1")
	f.Add("x", "-", "65536")
	f.Fuzz(func(t *testing.T, host, id, port string) {
		r := &http.Request{Host: host, Header: http.Header{idHeader: {id}, portHeader: {port}}}
		a, err := addressOf(r)
		if err != nil {
			return
		}
		if a.port < 1 || a.port > 65535 || a.id == "" || len(a.id) > 2*maxID || strings.Trim(a.id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("%q %q %q: %+v", host, id, port, a)
		}
	})
}
