package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// domain has one server in its guests, on port 3000.
type domain struct {
	boxes map[string]sandbox.Info
	late  map[string]sandbox.Info // what those become that are waited for
	guest string                  // address
}

func (d *domain) Known(_ context.Context, id string) (*sandbox.Info, error) {
	if box, ok := d.late[id]; ok {
		d.boxes[id] = box
	}
	if d.boxes[id].Untold {
		return nil, &sandbox.Error{Code: sandbox.Timeout, Message: "its process does not answer"}
	}
	if box, ok := d.boxes[id]; ok {
		return &box, nil
	}
	return nil, &sandbox.Error{Code: sandbox.NotFound, Message: "there is no sandbox"}
}

func (d *domain) Sandboxes() (list []sandbox.Info) {
	for _, box := range d.boxes {
		list = append(list, box)
	}
	return list
}

func (d *domain) Unpause(_ context.Context, id string, _ time.Duration) (*sandbox.Info, error) {
	box := d.boxes[id]
	box.State = sandbox.Running
	d.boxes[id] = box
	return &box, nil
}

func (d *domain) DialPort(ctx context.Context, _ string, port int) (net.Conn, error) {
	if port != 3000 {
		return nil, &sandbox.Error{Code: sandbox.PortClosed, Message: "nobody listens"}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", d.guest)
}

// named answers with a name, and with what it was told of a target.
type named string

func (n named) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s", string(n), r.URL.Path)
	if n == "envd" || n == "interpreter" {
		t := front.TargetOf(r.Context())
		fmt.Fprintf(w, " %s trusted=%v", t.ID, t.Trusted)
	}
}

func (n named) Signed(r *http.Request) bool { return r.URL.Query().Get("signed") == "yes" }

const (
	secured  = "sb000000000001" // has a token
	private  = "sb000000000002" // and a traffic token, and a mask
	insecure = "sb000000000003" // made without
	foreign  = "sb000000000004" // made otherwise
	asleep   = "sb000000000005" // paused
	resumed  = "sb000000000006" // paused, resumed by traffic
	dead     = "sb000000000007"
	lost     = "sb000000000008" // as dead, and nobody knows what it was
)

const envdToken = "0123456789abcdef"

func newSite(t *testing.T, token string) (*Router, *domain) {
	t.Helper()
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "guest %s host=%s headers=%d", r.URL.Path, r.Host, len(r.Header["X-Api-Key"])+len(r.Header["Authorization"])+len(r.Header[idHeader])+len(r.Header[trafficHeader]))
	}))
	t.Cleanup(guest.Close)
	box := func(id string, state sandbox.State, rec front.Record) sandbox.Info {
		return sandbox.Info{ID: id, State: state, Front: rec.Encode(), AutoResume: id == resumed, Reason: "it was killed"}
	}
	d := &domain{guest: guest.Listener.Addr().String(), boxes: map[string]sandbox.Info{
		secured:  box(secured, sandbox.Running, front.Record{EnvdToken: envdToken}),
		private:  box(private, sandbox.Running, front.Record{EnvdToken: "other", Private: true, TrafficToken: "traffic", MaskHost: "app.test:${PORT}"}),
		insecure: box(insecure, sandbox.Running, front.Record{}),
		foreign:  {ID: foreign, State: sandbox.Running},
		asleep:   box(asleep, sandbox.Paused, front.Record{EnvdToken: "a"}),
		resumed:  box(resumed, sandbox.Paused, front.Record{EnvdToken: "b"}),
		dead:     box(dead, sandbox.Exited, front.Record{EnvdToken: "c"}),
		lost:     {ID: lost, State: sandbox.Crashed, Reason: "its process is gone"},
	}}
	rt := newRouter(Config{Token: token, REST: named("rest"), Log: slog.New(slog.DiscardHandler)}, d, d)
	rt.control, rt.envd, rt.interpreter = named("control"), named("envd"), named("interpreter")
	t.Cleanup(rt.Close)
	return rt, d
}

// ask sends a request; headers are names and values in turn.
func ask(rt *Router, method, target string, headers ...string) (*http.Response, string) {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	rt.ServeHTTP(w, r)
	body, _ := io.ReadAll(w.Result().Body)
	return w.Result(), string(body)
}

func to(id, port string, more ...string) []string {
	return append([]string{idHeader, id, portHeader, port}, more...)
}

const here = "http://127.0.0.1:8889"

func TestRouting(t *testing.T) {
	for name, c := range map[string]struct {
		token, method, target string
		headers               []string
		status                int
		want                  string
	}{
		"REST":                 {"", "GET", here + "/v1/sandboxes", nil, 200, "rest /v1/sandboxes"},
		"REST's health":        {"", "GET", here + "/healthz", nil, 200, "rest"},
		"metrics":              {"", "GET", here + "/metrics", nil, 200, "rest"},
		"control":              {"", "POST", here + "/sandboxes", nil, 200, "control /sandboxes"},
		"control, v2":          {"", "GET", here + "/v2/sandboxes", nil, 200, "control"},
		"envd by headers":      {"", "GET", here + "/metrics", to(secured, "49983"), 200, "envd /metrics " + secured},
		"envd by host":         {"", "GET", here + "/health", []string{"Host", "49983-" + secured + ".localhost:8889"}, 200, "envd /health"},
		"interpreter":          {"", "POST", here + "/execute", to(secured, "49999"), 200, "interpreter /execute"},
		"a port by headers":    {"", "GET", here + "/a//b", to(secured, "3000"), 200, "guest /a//b host=127.0.0.1:8889 headers=0"},
		"a port by host":       {"", "GET", here + "/", []string{"Host", "3000-" + secured + ".forkd.example"}, 200, "guest / host=3000-" + secured + ".forkd.example"},
		"closed port":          {"", "GET", here + "/", to(secured, "3001"), 502, "nothing listens on port 3001"},
		"unknown sandbox":      {"", "GET", here + "/health", to("sbnone", "49983"), 502, "The sandbox was not found"},
		"host is no way back":  {"", "POST", here + "/sandboxes", []string{"Host", "3000-sbnone.localhost:8889"}, 502, "not found"},
		"REST is not there":    {"", "GET", here + "/v1/sandboxes", []string{"Host", "3000-" + secured + ".localhost"}, 200, "guest /v1/sandboxes"},
		"bad port":             {"", "GET", here + "/", to(secured, "x"), 400, "not a port"},
		"half an address":      {"", "GET", here + "/", []string{idHeader, secured}, 400, "once each"},
		"ended":                {"", "GET", here + "/health", to(dead, "49983"), 502, "it was killed"},
		"paused":               {"", "GET", here + "/health", to(asleep, "49983"), 502, "paused"},
		"paused, a port":       {"", "GET", here + "/", to(asleep, "3000"), 502, "paused"},
		"resumed by traffic":   {"", "GET", here + "/", to(resumed, "3000"), 200, "guest"},
		"files unsigned":       {"", "GET", here + "/files?path=x", nil, 401, "signature"},
		"tunnel":               {"", "CONNECT", here, nil, 405, "no proxy"},
		"private":              {"", "GET", here + "/", to(private, "3000"), 403, "is missing"},
		"private, wrong":       {"", "GET", here + "/", to(private, "3000", trafficHeader, "traffi"), 403, "is wrong"},
		"private, right":       {"", "GET", here + "/", to(private, "3000", trafficHeader, "traffic"), 200, "guest / host=app.test:3000 headers=0"},
		"private code":         {"", "POST", here + "/execute", to(private, "49999"), 403, "is missing"},
		"private envd":         {"", "GET", here + "/health", to(private, "49983"), 200, "envd"},
		"token missing":        {"s3cret", "GET", here + "/sandboxes", nil, 401, "token"},
		"token as key":         {"s3cret", "GET", here + "/sandboxes", []string{"X-API-KEY", "s3cret"}, 200, "control"},
		"token as bearer":      {"s3cret", "GET", here + "/sandboxes", []string{"Authorization", "Bearer s3cret"}, 200, "control"},
		"wrong key":            {"s3cret", "GET", here + "/sandboxes", []string{"X-API-KEY", "e2b_00"}, 401, "token"},
		"health is open":       {"s3cret", "GET", here + "/health", nil, 200, "control"},
		"signed uploads":       {"s3cret", "PUT", here + "/templates/x/files/y?signed=yes", nil, 200, "control"},
		"data needs no key":    {"s3cret", "GET", here + "/health", to(secured, "49983"), 200, "trusted=false"},
		"data with the key":    {"s3cret", "GET", here + "/health", to(secured, "49983", "X-API-KEY", "s3cret"), 200, "trusted=true"},
		"key stays here":       {"s3cret", "GET", here + "/", to(secured, "3000", "X-API-KEY", "s3cret"), 200, "headers=0"},
		"guest's own key":      {"s3cret", "GET", here + "/", to(secured, "3000", "X-API-KEY", "app"), 200, "headers=1"},
		"insecure with token":  {"s3cret", "GET", here + "/health", to(insecure, "49983"), 200, "envd"},
		"lost":                 {"s3cret", "GET", here + "/", to(lost, "3000"), 502, "its process is gone"},
		"foreign":              {"s3cret", "GET", here + "/health", to(foreign, "49983"), 401, "connect to it"},
		"foreign port":         {"s3cret", "GET", here + "/", to(foreign, "3000"), 401, "connect to it"},
		"foreign with the key": {"s3cret", "GET", here + "/", to(foreign, "3000", "X-API-KEY", "s3cret"), 200, "guest"},
		"foreign on loopback":  {"", "GET", here + "/", []string{"Host", "3000-" + foreign + ".localhost:8889"}, 200, "guest"},
		"foreign elsewhere":    {"", "GET", here + "/", []string{"Host", "3000-" + foreign + ".evil.example"}, 401, "connect to it"},
	} {
		t.Run(name, func(t *testing.T) {
			rt, _ := newSite(t, c.token)
			resp, body := ask(rt, c.method, c.target, c.headers...)
			if resp.StatusCode != c.status || !strings.Contains(body, c.want) {
				t.Errorf("%s %s, want %d %q", resp.Status, body, c.status, c.want)
			}
			if c.status < 400 {
				return
			}
			var e struct {
				Code    int
				Message string
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil || e.Code != c.status || e.Message == "" {
				t.Errorf("the body of an error: %s", body)
			}
		})
	}
}

// TestBrowsers: which web pages reach what.
func TestBrowsers(t *testing.T) {
	const page = "https://evil.example"
	for name, c := range map[string]struct {
		token, method, target string
		headers               []string
		status                int
		allowed               bool // the page may read the answer
	}{
		"control":                    {"", "POST", here + "/sandboxes", []string{"Origin", page}, 403, false},
		"control, rebound":           {"", "GET", here + "/sandboxes", []string{"Host", "evil.example:8889"}, 403, false},
		"control with a token":       {"s3cret", "POST", here + "/sandboxes", []string{"Origin", page, "X-API-KEY", "s3cret"}, 200, true},
		"control, wrong token":       {"s3cret", "POST", here + "/sandboxes", []string{"Origin", page}, 401, false},
		"secured":                    {"", "POST", here + "/process.Process/List", to(secured, "49983", "Origin", page), 200, true},
		"secured, by host":           {"", "POST", here + "/x", []string{"Host", "49983-" + secured + ".localhost", "Origin", page}, 200, true},
		"insecure":                   {"", "POST", here + "/process.Process/List", to(insecure, "49983", "Origin", page), 403, false},
		"insecure, rebound":          {"", "POST", here + "/x", to(insecure, "49983", "Host", "evil.example", "Origin", "http://evil.example"), 403, false},
		"insecure, by host":          {"", "POST", here + "/x", []string{"Host", "49983-" + insecure + ".localhost", "Origin", page}, 403, false},
		"insecure, no page":          {"", "POST", here + "/x", to(insecure, "49983"), 200, false},
		"insecure, token, page":      {"s3cret", "POST", here + "/x", to(insecure, "49983", "Origin", page), 403, false},
		"insecure, key, page":        {"s3cret", "POST", here + "/x", to(insecure, "49983", "Origin", page, "X-API-KEY", "s3cret"), 200, false},
		"page of a guest":            {"", "POST", here + "/sandboxes", []string{"Origin", "http://3000-" + secured + ".localhost:8889", "Sec-Fetch-Site", "same-site"}, 403, false},
		"page of no origin":          {"", "POST", here + "/sandboxes", []string{"Origin", "null"}, 403, false},
		"a port: the guest's matter": {"", "POST", here + "/", to(secured, "3000", "Origin", page), 200, false},
	} {
		t.Run(name, func(t *testing.T) {
			rt, _ := newSite(t, c.token)
			resp, body := ask(rt, c.method, c.target, c.headers...)
			if resp.StatusCode != c.status || (resp.Header.Get("Access-Control-Allow-Origin") == "*") != c.allowed {
				t.Errorf("%s %s with the headers %v", resp.Status, body, resp.Header)
			}
		})
	}
}

func TestPreflights(t *testing.T) {
	for name, c := range map[string]struct {
		token, target, host, wanted string
		allowed                     bool
	}{
		"data":                 {"", here + "/process.Process/Start", "", "content-type,e2b-sandbox-id,e2b-sandbox-port,x-access-token", true},
		"data, by host":        {"", here + "/process.Process/Start", "49983-" + secured + ".localhost", "content-type", true},
		"signed files":         {"", here + "/files?path=x&signature=y", "", "", true},
		"control":              {"", here + "/v2/sandboxes", "", "x-api-key", false},
		"control with a token": {"s3cret", here + "/v2/sandboxes", "", "x-api-key", true},
	} {
		t.Run(name, func(t *testing.T) {
			rt, _ := newSite(t, c.token)
			headers := []string{"Origin", "https://app.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", c.wanted}
			if c.host != "" {
				headers = append(headers, "Host", c.host)
			}
			resp, body := ask(rt, "OPTIONS", c.target, headers...)
			h := resp.Header
			if got := resp.StatusCode == 204 && h.Get("Access-Control-Allow-Origin") == "*" && h.Get("Access-Control-Allow-Headers") == c.wanted; got != c.allowed {
				t.Errorf("%s %s %v", resp.Status, body, h)
			}
		})
	}
	rt, _ := newSite(t, "")
	_, body := ask(rt, "OPTIONS", here+"/v1/sandboxes", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	if !strings.HasPrefix(body, "rest") {
		t.Errorf("REST's preflight is answered with %q", body)
	}
}

// TestContainment: what a guest sends under the daemon's own name is no page of the
// daemon's to a browser.
func TestContainment(t *testing.T) {
	rt, _ := newSite(t, "")
	byHost := []string{"Host", "3000-" + secured + ".localhost"}
	for name, c := range map[string]struct {
		target    string
		headers   []string
		contained bool
	}{
		"a port":          {"/", to(secured, "3000"), true},
		"a port, by host": {"/", byHost, false},
		"envd":            {"/files", to(secured, "49983"), true},
		"signed":          {"/files?" + signed("/a", front.Read, "", envdToken, ""), nil, true},
	} {
		resp, _ := ask(rt, "GET", here+c.target, c.headers...)
		policy := resp.Header.Get("Content-Security-Policy")
		if got := strings.HasPrefix(policy, "sandbox") && !strings.Contains(policy, "allow-same-origin"); got != c.contained || resp.StatusCode != 200 {
			t.Errorf("%s: %s %q", name, resp.Status, policy)
		}
	}
}

func signed(path, operation, user, token, expiration string) string {
	q := url.Values{"path": {path}, "username": {user}, "signature": {front.Signature(path, operation, user, token, expiration)}}
	if expiration != "" {
		q.Set("signature_expiration", expiration)
	}
	return q.Encode()
}

func TestSignedFiles(t *testing.T) {
	rt, _ := newSite(t, "s3cret")
	for name, c := range map[string]struct {
		method, query string
		ok            bool
	}{
		"download":         {"GET", signed("/a b", front.Read, "user", envdToken, ""), true},
		"upload":           {"POST", signed("x", front.Write, "", envdToken, ""), true},
		"with an end":      {"GET", signed("/a", front.Read, "", envdToken, "4000000000"), true},
		"for another way":  {"POST", signed("/a", front.Read, "", envdToken, ""), false},
		"of another token": {"GET", signed("/a", front.Read, "", "nobody's", ""), false},
		"of no token":      {"GET", signed("/a", front.Read, "", "", ""), false},
		"for another path": {"GET", strings.Replace(signed("/a", front.Read, "", envdToken, ""), "%2Fa", "%2Fb", 1), false},
		"without its end":  {"GET", strings.Replace(signed("/a", front.Read, "", envdToken, "4000000000"), "signature_expiration=4000000000", "", 1), false},
		"nothing signed":   {"GET", "path=x&signature=", false},
		"another method":   {"PUT", signed("/a", front.Write, "", envdToken, ""), false},
	} {
		resp, body := ask(rt, c.method, here+"/files?"+c.query)
		if ok := resp.StatusCode == 200 && strings.HasPrefix(body, "envd /files "+secured); ok != c.ok || !ok && resp.StatusCode != 401 {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
}

// TestLate: a sandbox of which its process has not told yet is waited for, and is then what it was before: nobody gets
// in without its tokens, and nobody is sent away with them.
func TestLate(t *testing.T) {
	for name, c := range map[string]struct {
		id      string
		target  string
		headers []string
		status  int
		want    string
	}{
		"envd":               {secured, here + "/health", to(secured, "49983"), 200, "envd /health " + secured},
		"a private port":     {private, here + "/", to(private, "3000", trafficHeader, "traffic"), 200, "guest"},
		"no traffic token":   {private, here + "/", to(private, "3000"), 403, "is missing"},
		"a signed file":      {secured, here + "/files?" + signed("/a", front.Read, "", envdToken, ""), nil, 200, "envd /files " + secured},
		"a file signed ill":  {secured, here + "/files?" + signed("/a", front.Read, "", "nobody's", ""), nil, 401, "no sandbox has signed"},
		"one that is paused": {asleep, here + "/", to(asleep, "3000"), 502, "paused"},
	} {
		rt, d := newSite(t, "s3cret")
		silent := sandbox.Info{ID: c.id, State: sandbox.Running, Untold: true}
		d.late = map[string]sandbox.Info{c.id: d.boxes[c.id]}
		d.boxes[c.id] = silent
		if resp, body := ask(rt, "GET", c.target, c.headers...); resp.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %s %s, want %d %q", name, resp.Status, body, c.status, c.want)
		}
		d.late, d.boxes[c.id] = nil, silent
		if resp, body := ask(rt, "GET", c.target, c.headers...); resp.StatusCode != 504 || !strings.Contains(body, "does not answer") {
			t.Errorf("%s, without an answer: %s %s", name, resp.Status, body)
		}
	}
}

// TestPanic: a fault in a handler ends one connection and is logged.
func TestPanic(t *testing.T) {
	var log strings.Builder
	rt, _ := newSite(t, "")
	rt.log = slog.New(slog.NewTextHandler(&log, nil))
	rt.rest = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("ouch") })
	defer func() {
		if e := recover(); e != http.ErrAbortHandler || !strings.Contains(log.String(), "ouch") {
			t.Errorf("recovered %v, logged %s", e, &log)
		}
	}()
	ask(rt, "GET", here+"/version")
}
