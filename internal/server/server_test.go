package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

// site is a server with a fake domain, reachable over a Unix socket and TCP.
type site struct {
	*servertest.Fake
	server *Server
	unix   string // URL
	tcp    string // URL
	log    *logBuffer
	c      *client.Client // over the Unix socket
}

func newSite(t testing.TB, token string, change ...func(*servertest.Fake)) *site {
	t.Helper()
	dir := t.TempDir()
	fake := servertest.New(dir, "pyagent")
	for _, f := range change {
		f(fake)
	}
	log := new(logBuffer)
	s := &site{Fake: fake, log: log}
	s.server = New(Config{
		Manager: fake, Token: token, Version: "v0-test", Engine: "fake",
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	s.server.keepAlive = 50 * time.Millisecond
	ctx, cancel := context.WithCancelCause(context.Background())
	srv := &http.Server{Handler: s.server, BaseContext: func(net.Listener) context.Context { return ctx }}
	socket := filepath.Join(dir, "s")
	for _, at := range []struct{ network, addr string }{{"unix", socket}, {"tcp", "127.0.0.1:0"}} {
		l, err := net.Listen(at.network, at.addr)
		if err != nil {
			t.Fatal(err)
		}
		if at.network == "tcp" {
			s.tcp = "http://" + l.Addr().String()
		}
		go srv.Serve(l)
	}
	s.unix = "unix://" + socket
	s.c = newClient(t, s.unix, token)
	t.Cleanup(func() {
		cancel(ErrShutdown)
		srv.Close()
	})
	return s
}

// logBuffer is a buffer that may be written and read at the same time.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newClient(t testing.TB, url, token string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: url, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// fork makes one sandbox.
func (s *site) fork(t testing.TB) string {
	t.Helper()
	boxes, _, err := s.c.Fork(context.Background(), client.ForkRequest{SnapshotTag: "pyagent"})
	if err != nil {
		t.Fatal(err)
	}
	return boxes[0].ID
}

// ask sends a request over TCP and returns the status and the body.
func (s *site) ask(t testing.TB, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, s.tcp+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// wantError checks that an answer is an error in the API's form.
func wantError(t *testing.T, resp *http.Response, text string, status int, code api.ErrorCode, says string) {
	t.Helper()
	var body api.Error
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		t.Fatalf("%s with a body that is not JSON: %q", resp.Status, text)
	}
	if resp.StatusCode != status || body.Code != code || !strings.Contains(body.Error, says) {
		t.Errorf("got %d %s %q, want %d %s saying %q", resp.StatusCode, body.Code, body.Error, status, code, says)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("an error of type %q", got)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come to be", what)
		}
	}
}

func TestWrongInput(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	box := "/v1/sandboxes/" + id
	const bad = api.ErrorCodeInvalidArgument
	for _, c := range []struct {
		method, path, body string
		status             int
		code               api.ErrorCode
		says               string
	}{
		// No route, wrong method.
		{"GET", "/", "", 404, "not_found", "no route"},
		{"GET", "/v1/nothing", "", 404, "not_found", "/v1/nothing"},
		{"GET", "/v1/sandboxes/", "", 404, "not_found", "no route"},
		{"PATCH", "/v1/sandboxes", "", 405, "method_not_allowed", "PATCH"},
		{"POST", "/healthz", "", 405, "method_not_allowed", "POST"},
		// Bodies.
		{"POST", "/v1/sandboxes", "", 400, bad, "empty"},
		{"POST", "/v1/sandboxes", "  ", 400, bad, "empty"},
		{"POST", "/v1/sandboxes", `{"tag":`, 400, bad, "ends too early"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent"`, 400, bad, "ends too early"},
		{"POST", "/v1/sandboxes", `{"tag":5}`, 400, bad, "tag: must be a string"},
		{"POST", "/v1/sandboxes", `[]`, 400, bad, "must be a JSON object"},
		{"POST", "/v1/sandboxes", `"x"`, 400, bad, "must be a JSON object"},
		{"POST", "/v1/sandboxes", `null`, 400, bad, "must be a JSON object"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent"}{"tag":"pyagent"}`, 400, bad, "more than one"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent"} x`, 400, bad, "more than one"},
		{"POST", "/v1/sandboxes", `{"taag":"pyagent"}`, 400, bad, `unknown field "taag"`},
		{"POST", "/v1/sandboxes", `{tag:1}`, 400, bad, "malformed JSON"},
		{"POST", "/v1/sandboxes", `{"tag":"` + strings.Repeat("x", 300000) + `"}`, 413, "too_large", "262144"},
		// Tags.
		{"POST", "/v1/sandboxes", `{}`, 400, bad, "tag: required"},
		{"POST", "/v1/sandboxes", `{"tag":"../x"}`, 400, bad, "tag: malformed tag"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"../x"}`, 400, bad, "snapshot_tag: malformed tag"},
		{"POST", "/v1/sandboxes", `{"tag":"` + strings.Repeat("x", 65) + `"}`, 400, bad, "malformed tag"},
		{"POST", "/v1/sandboxes", `{"tag":"nosuch"}`, 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","snapshot_tag":"b"}`, 400, bad, "differs"},
		{"GET", "/v1/snapshots/a.b/info", "", 400, bad, "malformed tag"},
		{"GET", "/v1/snapshots/nosuch/info", "", 404, "not_found", "nosuch"},
		{"DELETE", "/v1/snapshots/nosuch", "", 404, "not_found", "nosuch"},
		{"DELETE", "/v1/snapshots/a%2fb", "", 400, bad, "malformed tag"},
		{"DELETE", "/v1/snapshots/pyagent", "", 409, "in_use", id},
		{"DELETE", "/v1/snapshots/pyagent?force=perhaps", "", 400, bad, `force: must be true or false, not "perhaps"`},
		{"DELETE", "/v1/snapshots/pyagent?forced=true", "", 400, bad, `unknown query parameter "forced"`},
		{"DELETE", "/v1/snapshots/pyagent?force=%zz", "", 400, bad, "malformed query"},
		{"GET", "/v1/sandboxes?n=5", "", 400, bad, "unknown query parameter"},
		// Numbers.
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":0}`, 400, bad, "n: must be 1 to 1000, not 0"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":-1}`, 400, bad, "n: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":1001}`, 400, bad, "n: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","count":1001}`, 400, bad, "count: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":2,"count":3}`, 400, bad, "differs"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":1e308}`, 400, bad, "n: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":9223372036854775808}`, 400, bad, "n: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":1.5}`, 400, bad, "n: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":"5"}`, 400, bad, "n: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","n":true}`, 400, bad, "n: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","memory_limit_mib":0}`, 400, bad, "memory_limit_mib: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","memory_limit_mib":2}`, 400, bad, "memory_limit_mib: must be 3 to 1048576, not 2"},
		{"POST", "/v1/workspaces", `{"name":"w","snapshot_tag":"pyagent","memory_limit_mib":1}`, 400, bad, "memory_limit_mib: must be 3 to"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","memory_limit_mib":-1}`, 400, bad, "memory_limit_mib: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","cpus":0}`, 400, bad, "cpus: must be 0.01 to 1024, not 0"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","cpus":1e308}`, 400, bad, "cpus: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","cpus":"2"}`, 400, bad, "cpus: must be a number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","cpu_weight":10001}`, 400, bad, "cpu_weight: must be 1 to 10000"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","pids_limit":0}`, 400, bad, "pids_limit: must be 1 to 4194304, not 0"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","pids_limit":-1}`, 400, bad, "pids_limit: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","pids_limit":9223372036854775808}`, 400, bad, "pids_limit: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","disk_limit_mib":0}`, 400, bad, "disk_limit_mib: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","disk_limit_mib":1.5}`, 400, bad, "disk_limit_mib: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","disk_bytes_per_sec":1023}`, 400, bad, "disk_bytes_per_sec: must be 1024 to"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","net_bytes_per_sec":0}`, 400, bad, "net_bytes_per_sec: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","net_bytes_per_sec":-1}`, 400, bad, "net_bytes_per_sec: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","net_bytes_per_sec":9223372036854775808}`, 400, bad, "net_bytes_per_sec: must be a whole number"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","idle_timeout_secs":0}`, 400, bad, "idle_timeout_secs: must be over 0"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","idle_timeout_secs":1e308}`, 400, bad, "idle_timeout_secs: "},
		{"POST", "/v1/workspaces", `{"name":"w","snapshot_tag":"pyagent","pids_limit":0}`, 400, bad, "pids_limit: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","timeout_secs":0}`, 400, bad, "timeout_secs: must be over 0"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","timeout_secs":-1}`, 400, bad, "timeout_secs: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","timeout_secs":1e308}`, 400, bad, "timeout_secs: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","timeout_secs":1e309}`, 400, bad, "timeout_secs: must be a number in range"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","timeout_secs":"5"}`, 400, bad, "timeout_secs: "},
		// Not in this build.
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","per_child_netns":true}`, 501, "unsupported", "per_child_netns"},
		{"POST", "/v1/snapshots", `{"tag":"a","image":"alpine"}`, 501, "unsupported", "image"},
		{"POST", "/v1/snapshots", `{"tag":"a","kernel":"k","rootfs":"r"}`, 501, "unsupported", "this build"},
		// Snapshots.
		{"POST", "/v1/snapshots", `{"tag":"pyagent"}`, 409, "already_exists", "pyagent"},
		{"POST", "/v1/snapshots", `{}`, 400, bad, "tag: required"},
		{"POST", "/v1/snapshots", `{"tag":"a","runtime":"perl"}`, 400, bad, "runtime: "},
		{"POST", "/v1/snapshots", `{"tag":"a","memory_mib":0}`, 400, bad, "memory_mib: "},
		{"POST", "/v1/snapshots", `{"tag":"a","vcpus":-1}`, 400, bad, "vcpus: "},
		{"POST", "/v1/snapshots", `{"tag":"a","disk_mib":1}`, 400, bad, "disk_mib: "},
		{"POST", "/v1/snapshots", `{"tag":"a","modules":"numpy"}`, 400, bad, "modules: must be an array"},
		{"POST", "/v1/snapshots", `{"tag":"a","setup":[[]]}`, 400, bad, "setup[0]: "},
		// Sandboxes.
		{"GET", "/v1/sandboxes/nosuch", "", 404, "not_found", "nosuch"},
		{"DELETE", "/v1/sandboxes/nosuch", "", 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes/nosuch/ping", "", 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes/nosuch/interrupt", "", 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes/nosuch/eval", `{"code":"1"}`, 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes/nosuch/exec", `{"args":["true"]}`, 404, "not_found", "nosuch"},
		// Commands.
		{"POST", box + "/exec", `{}`, 400, bad, "args: "},
		{"POST", box + "/exec", `{"args":[]}`, 400, bad, "args: "},
		{"POST", box + "/exec", `{"args":[""]}`, 400, bad, "args: "},
		{"POST", box + "/exec", `{"args":"true"}`, 400, bad, "args: must be an array"},
		{"POST", box + "/exec", `{"args":["a\u0000b"]}`, 400, bad, "args[0]: holds a NUL"},
		{"POST", box + "/exec", `{"args":["true"],"env":{"A=B":"1"}}`, 400, bad, "env: malformed name"},
		{"POST", box + "/exec", `{"args":["true"],"env":{"":"1"}}`, 400, bad, "env: malformed name"},
		{"POST", box + "/exec", `{"args":["true"],"env":{"A":"\u0000"}}`, 400, bad, "env.A: "},
		{"POST", box + "/exec", `{"args":["true"],"env":{"A":5}}`, 400, bad, "must be a string"},
		{"POST", box + "/exec", `{"args":["true"],"cwd":"tmp"}`, 400, bad, "cwd: must be absolute"},
		{"POST", box + "/exec", `{"args":["true"],"stdin":"a","stdin_b64":"YQ=="}`, 400, bad, "stdin_b64: "},
		{"POST", box + "/exec", `{"args":["true"],"stdin_b64":"!"}`, 400, bad, "malformed JSON"},
		{"POST", box + "/exec", `{"args":["true"],"timeout_secs":0}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/exec", `{"args":["true"],"output_limit_bytes":0}`, 400, bad, "output_limit_bytes: "},
		{"POST", box + "/exec", `{"args":["true"],"output_limit_bytes":67108865}`, 400, bad, "output_limit_bytes: "},
		{"POST", box + "/eval", `{}`, 400, bad, "code: required"},
		{"POST", box + "/eval", `{"code":1}`, 400, bad, "code: must be a string"},
		{"POST", box + "/eval", `{"code":"1","timeout_secs":-0.5}`, 400, bad, "timeout_secs: "},
		// Lifetimes (field case 117).
		{"POST", box + "/timeout", ``, 400, bad, "body is empty"},
		{"POST", box + "/timeout", `{}`, 400, bad, "timeout_secs: required"},
		{"POST", box + "/timeout", `{"timeout_secs":0}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/timeout", `{"timeout_secs":-1}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/timeout", `{"timeout_secs":1e308}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/timeout", `{"timeout_secs":"5"}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/timeout", `{"timeout_secs":true}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/timeout", `{"timeout_secs":null,"extend":true}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/timeout", `{"timeout":5}`, 400, bad, "timeout"},
		{"POST", box + "/resume", `{"timeout_secs":0}`, 400, bad, "timeout_secs: "},
		{"POST", box + "/resume", `[]`, 400, bad, "JSON object"},
		{"POST", "/v1/sandboxes/nosuch/pause", "", 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes/nosuch/resume", "", 404, "not_found", "nosuch"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","on_timeout":"sleep"}`, 400, bad, "on_timeout: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","metadata":{"a":5}}`, 400, bad, "must be a string"},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","metadata":{"a":"` + strings.Repeat("x", 17<<10) + `"}}`, 400, bad, "metadata: "},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","env":{"A=":"1"}}`, 400, bad, "env: "},
		{"GET", "/v1/sandboxes?state=asleep", "", 400, bad, "state: "},
		{"GET", "/v1/sandboxes?metadata=a", "", 400, bad, "metadata: "},
		// Processes.
		{"POST", box + "/processes", `{}`, 400, bad, "args: "},
		{"POST", box + "/processes", `{"args":["a"],"tty":{"cols":0,"rows":5}}`, 400, bad, "tty.cols: "},
		{"POST", box + "/processes", `{"args":["a"],"tty":{"cols":5,"rows":65536}}`, 400, bad, "tty.rows: "},
		{"POST", box + "/processes", `{"args":["a"],"tag":"` + strings.Repeat("x", 257) + `"}`, 400, bad, "tag: "},
		{"POST", box + "/processes", `{"args":["no such program"]}`, 404, "not_found", "process"},
		{"GET", box + "/processes/x/attach", "", 400, bad, "process: "},
		{"GET", box + "/processes/@/attach", "", 400, bad, "process: "},
		{"GET", box + "/processes/0/attach", "", 400, bad, "process: "},
		{"GET", box + "/processes/-1/attach", "", 400, bad, "process: "},
		{"GET", box + "/processes/99999999999/attach", "", 400, bad, "process: "},
		{"POST", box + "/processes/1/input", `{"data":"a","data_b64":"YQ=="}`, 400, bad, "data_b64: "},
		{"POST", box + "/processes/1/signal", `{"signal":"SIGNOTHING"}`, 400, bad, "signal: "},
		{"POST", box + "/processes/1/signal", `{"signal":"65"}`, 400, bad, "signal: "},
		{"POST", box + "/processes/1/signal", `{"signal":9}`, 400, bad, "signal: "},
		{"POST", box + "/processes/1/resize", `{"cols":1}`, 400, bad, "rows: "},
		// Code.
		{"POST", box + "/run", `{}`, 400, bad, "code: required"},
		{"POST", box + "/run", `{"code":"x","language":"ruby"}`, 400, bad, "language: "},
		{"POST", box + "/run", `{"code":"x","language":"bash","context":"c"}`, 400, bad, "language: "},
		{"POST", box + "/run", `{"code":"x","cwd":"tmp"}`, 400, bad, "cwd: "},
		{"POST", box + "/contexts", `{"language":"ruby"}`, 400, bad, "language: "},
		{"DELETE", box + "/contexts/default", "", 400, bad, "default"},
		{"DELETE", box + "/contexts/none", "", 404, "not_found", "none"},
		// Ports.
		{"GET", box + "/tcp/0", "", 400, bad, "connection"},
		{"GET", box + "/tcp/x", "", 400, bad, "port: "},
		{"GET", box + "/tcp/80", "", 400, bad, "no request for a connection"},
		{"GET", box + "/ports/x/", "", 400, bad, "port: "},
		{"GET", box + "/ports/0/", "", 400, bad, "port"},
		{"POST", "/v1/sandboxes/nosuch/ports/80/", "", 404, "not_found", "nosuch"},
		// Files.
		{"GET", box + "/files/tree?path=/&depth=0", "", 400, bad, "depth: "},
		{"GET", box + "/files/tree?path=/&depth=257", "", 400, bad, "depth: "},
		{"GET", box + "/files/watch?path=a", "", 400, bad, "path: "},
		{"GET", box + "/files/watch?path=/nosuch", "", 404, "not_found", "no such file"},
		{"POST", box + "/files/compose", `{"target":"/a","sources":[]}`, 400, bad, "sources: "},
		{"POST", box + "/files/compose", `{"target":"/a","sources":["b"]}`, 400, bad, "sources[0]: "},
		{"POST", box + "/files/compose", `{"target":"a","sources":["/b"]}`, 400, bad, "target: "},
		{"PUT", box + "/files?path=/a&attr=x", "x", 400, bad, "attr: "},
		{"GET", box + "/files", "", 400, bad, "path: required"},
		{"GET", box + "/files?path=", "", 400, bad, "path: required"},
		{"GET", box + "/files?path=a", "", 400, bad, "path: must be absolute"},
		{"GET", box + "/files?path=/a&path=/b", "", 400, bad, "path"},
		{"GET", box + "/files?path=/a%00b", "", 400, bad, "path: holds a NUL"},
		{"GET", box + "/files?path=/nosuch", "", 404, "not_found", "no such file"},
		{"GET", box + "/files?path=/a&offset=-1", "", 400, bad, "offset"},
		{"GET", box + "/files?path=/a&offset=abc", "", 400, bad, `offset: must be a whole number in range, not "abc"`},
		{"GET", box + "/files?path=/a&length=-1", "", 400, bad, "length"},
		{"GET", box + "/files?path=/a&length=x", "", 400, bad, "length"},
		{"PUT", box + "/files?path=/a&mode=rwx", "x", 400, bad, "mode: "},
		{"PUT", box + "/files?path=/a&mode=99", "x", 400, bad, "mode: "},
		{"PUT", box + "/files?path=/no/such/dir", "x", 404, "not_found", "no such file"},
		{"DELETE", box + "/files?path=/nosuch", "", 404, "not_found", "no such file"},
		{"GET", box + "/files/list?path=/nosuch", "", 404, "not_found", "no such file"},
		{"GET", box + "/files/stat?path=/nosuch", "", 404, "not_found", "no such file"},
		{"POST", box + "/files/mkdir", "", 400, bad, "path: required"},
		{"POST", box + "/files/rename?from=/a", "", 400, bad, "to: required"},
		{"POST", box + "/files/rename?from=/a&to=b", "", 400, bad, "to: must be absolute"},
	} {
		t.Run(c.method+c.path+c.body[:min(len(c.body), 40)], func(t *testing.T) {
			resp, text := s.ask(t, c.method, c.path, c.body)
			wantError(t, resp, text, c.status, c.code, c.says)
		})
	}
	if boxes := s.Sandboxes(); len(boxes) != 1 {
		t.Errorf("refused requests left %d sandboxes, want the 1 that was there", len(boxes))
	}
	if all, _ := s.Snapshots(); len(all) != 1 {
		t.Errorf("refused requests left %d snapshots, want 1", len(all))
	}
}

func TestContentType(t *testing.T) {
	s := newSite(t, "")
	for _, c := range []struct {
		given string
		ok    bool
	}{
		{"application/json", true},
		{"application/json; charset=utf-8", true},
		{"text/plain", false},
		{"application/x-www-form-urlencoded", false},
		{";;", false},
	} {
		resp, text := s.ask(t, "POST", "/v1/sandboxes", `{"tag":"pyagent"}`, "Content-Type", c.given)
		if c.ok && resp.StatusCode != 201 {
			t.Errorf("%q: %s %s", c.given, resp.Status, text)
		}
		if !c.ok {
			wantError(t, resp, text, 415, "unsupported_media_type", "not application/json")
		}
	}
}

// TestNullIsAbsent holds what the spec says of null.
func TestNullIsAbsent(t *testing.T) {
	s := newSite(t, "")
	resp, text := s.ask(t, "POST", "/v1/sandboxes",
		`{"snapshot_tag":"pyagent","n":null,"memory_limit_mib":null,"timeout_secs":null,"live_fork":null,"per_child_netns":false}`)
	if resp.StatusCode != 201 {
		t.Errorf("%s %s", resp.Status, text)
	}
}

func TestAllowHeader(t *testing.T) {
	s := newSite(t, "")
	resp, _ := s.ask(t, "PUT", "/v1/sandboxes", "")
	if got := resp.Header.Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("Allow: %q", got)
	}
}

// TestEndlessBody: a body over the limit is refused while it arrives.
func TestEndlessBody(t *testing.T) {
	s := newSite(t, "")
	endless := io.MultiReader(strings.NewReader(`{"tag":"`), zeros{})
	req, err := http.NewRequest("POST", s.tcp+"/v1/sandboxes", endless)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return // the server hung up while we were sending, which is as good
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %s", resp.Status)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestMetrics(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	ctx := context.Background()
	if _, err := s.c.Eval(ctx, id, client.EvalRequest{Code: "1+1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Exec(ctx, id, client.ExecRequest{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	text, err := s.c.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nforkd_snapshots_total 1\n",
		"\nforkd_sandboxes_active 1\n",
		`forkd_build_info{engine="fake",goversion="`,
		`version="v0-test"} 1`,
		"\nforkd_fork_duration_seconds_count 1\n",
		"\nforkd_eval_duration_seconds_count 1\n",
		"\nforkd_exec_duration_seconds_count 1\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
}

// TestAuditLog: what was done is logged, and no secret is.
func TestAuditLog(t *testing.T) {
	s := newSite(t, "s3cret-token")
	id := s.fork(t)
	_, err := s.c.Exec(context.Background(), id, client.ExecRequest{
		Args: []string{"true", "--password=hunter2"}, Env: map[string]string{"KEY": "hunter3"}, Stdin: "hunter4",
	})
	if err != nil {
		t.Fatal(err)
	}
	s.ask(t, "GET", "/version", "", "Authorization", "Bearer wrong-token")
	eventually(t, "the last line of the log", func() bool { return strings.Contains(s.log.String(), "GET /version") })
	log := s.log.String()
	for _, want := range []string{
		`route="POST /v1/sandboxes" status=201`, "tag=pyagent n=1 started=1", "remote=unix",
		`route="POST /v1/sandboxes/{id}/exec" status=200`, "id=" + id, "program=true args=1",
		`level=WARN msg=request route="GET /version" status=401`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	for _, secret := range []string{"hunter", "s3cret", "wrong-token"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has the secret %q", secret)
		}
	}
}
