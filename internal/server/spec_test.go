package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

func loadSpec(t *testing.T) *openapi3.T {
	t.Helper()
	spec, err := openapi3.NewLoader().LoadFromFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return spec
}

// operations maps "METHOD /path" to what the spec says of it.
func operations(spec *openapi3.T) map[string]*openapi3.Operation {
	all := map[string]*openapi3.Operation{}
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			all[method+" "+path] = op
		}
	}
	return all
}

// patterns is a mux that keeps what is registered.
type patterns struct {
	http.ServeMux
	all []string
}

func (p *patterns) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	p.all = append(p.all, pattern)
	p.ServeMux.HandleFunc(pattern, handler)
}

func TestRoutesAreTheSpecs(t *testing.T) {
	spec := loadSpec(t)
	mux := new(patterns)
	HandlerWithOptions(&Server{}, StdHTTPServerOptions{BaseRouter: mux})
	want := slices.Sorted(maps.Keys(operations(spec)))
	slices.Sort(mux.all)
	if !slices.Equal(mux.all, want) {
		t.Errorf("routes\n%q\nspec\n%q", mux.all, want)
	}
	for pattern, op := range operations(spec) {
		var names []string
		for _, p := range op.Parameters {
			if p.Value.In == "query" {
				names = append(names, p.Value.Name)
			}
		}
		got := slices.Clone(queryNames[pattern])
		slices.Sort(got)
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("%s: queryNames %q, spec %q", pattern, got, names)
		}
	}
}

func TestErrorCodesAreTheSpecs(t *testing.T) {
	spec := loadSpec(t)
	var inSpec []string
	for _, v := range spec.Components.Schemas["ErrorCode"].Value.Enum {
		inSpec = append(inSpec, v.(string))
	}
	slices.Sort(inSpec)
	var mapped []string
	for code, status := range statusOf {
		mapped = append(mapped, string(code))
		row := fmt.Sprintf("| %s | %d |", code, status)
		if !strings.Contains(spec.Info.Description, row) {
			t.Errorf("the spec's table lacks %q", row)
		}
	}
	slices.Sort(mapped)
	if !slices.Equal(inSpec, mapped) {
		t.Errorf("spec %q, statuses %q", inSpec, mapped)
	}
	for _, code := range []sandbox.Code{
		sandbox.InvalidArgument, sandbox.NotFound, sandbox.AlreadyExists, sandbox.InUse, sandbox.NotBootable,
		sandbox.CapacityExceeded, sandbox.NoSpace, sandbox.SandboxDead, sandbox.NoRuntime, sandbox.RuntimeLost, sandbox.Timeout,
		sandbox.Unavailable, sandbox.Unsupported, sandbox.Internal, sandbox.FailedPrecondition, sandbox.CommandFailed,
		sandbox.SandboxPaused, sandbox.PortClosed,
	} {
		if _, ok := statusOf[api.ErrorCode(code)]; !ok {
			t.Errorf("the API lacks the domain's code %s", code)
		}
	}
}

// TestAnswersConform tries every operation and holds requests and answers
// against the spec.
func TestAnswersConform(t *testing.T) {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", firstLine)
	defer openapi3filter.UnregisterBodyDecoder("application/x-ndjson")
	s := newSite(t, "", failing(5), func(f *servertest.Fake) {
		f.CreateSteps = []sandbox.Progress{{Step: "boot", Message: "booting", Done: 1, Total: 2}}
	})
	spec := loadSpec(t)
	spec.Servers = openapi3.Servers{{URL: s.tcp}}
	router, err := legacy.NewRouter(spec)
	if err != nil {
		t.Fatal(err)
	}
	id := s.fork(t)
	box := "/v1/sandboxes/" + id
	port := closingPort(t)
	seen := map[string]bool{}
	for _, c := range []struct {
		method, path, body string
		status             int
		headers            []string
	}{
		{"GET", "/healthz", "", 200, nil},
		{"GET", "/version", "", 200, nil},
		{"GET", "/metrics", "", 200, nil},
		{"GET", "/v1/snapshots", "", 200, nil},
		{"POST", "/v1/snapshots", `{"tag":"a","memory_mib":256,"vcpus":1,"disk_mib":1024,"packages":["jq"],"mirror":"http://m/d",
			"runtime":"python","modules":[],"warm_up":["1"],"setup":[["true"]]}`, 201, nil},
		{"POST", "/v1/snapshots", `{"tag":"b"}`, 200, []string{"Accept", ndjsonType}},
		{"POST", "/v1/snapshots", `{"tag":"a"}`, 409, nil},
		{"GET", "/v1/snapshots/a/info", "", 200, nil},
		{"POST", box + "/branch", `{"tag":"br","mode":"diff","wait":false}`, 201, nil},
		{"POST", box + "/branch", "", 201, nil},
		{"POST", box + "/branch", `{"tag":"br"}`, 409, nil},
		{"POST", box + "/rollback", `{"snapshot_tag":"br"}`, 200, nil},
		{"POST", box + "/rollback", `{"snapshot_tag":"pyagent"}`, 200, nil},
		{"POST", "/v1/snapshots/br/compact", `{"to":"flat"}`, 201, nil},
		{"POST", "/v1/snapshots/br/derive", `{"tag":"more","commands":[["true"]],"evals":["1+1"]}`, 201, nil},
		{"POST", "/v1/snapshots/br/derive", `{"tag":"more2","commands":[["true"]]}`, 200, []string{"Accept", ndjsonType}},
		{"POST", "/v1/snapshots/br/verify", "", 200, nil},
		{"POST", "/v1/snapshots/br/verify", "", 200, []string{"Accept", ndjsonType}},
		{"GET", "/v1/snapshots/more/info", "", 200, nil},
		{"POST", "/v1/sandboxes", `{"from_sandbox":"` + id + `","n":2}`, 201, nil},
		{"GET", "/v1/tree", "", 200, nil},
		{"GET", "/v1/snapshots/more/pack", "", 200, nil},
		{"POST", "/v1/snapshots/unpack?tag=again", "fake pack of more", 201, []string{"Content-Type", packType}},
		{"POST", "/v1/snapshots/unpack", "fake pack of more", 409, []string{"Content-Type", packType}},
		{"POST", "/v1/snapshots/again/push", `{"reference":"oci://host:1/x:y","hub_url":"http://h/","hub_token":"t"}`, 200, nil},
		{"POST", "/v1/snapshots/again/push", `{"reference":"owner/name"}`, 200, []string{"Accept", ndjsonType}},
		{"POST", "/v1/snapshots/pull", `{"reference":"owner/name","tag":"pulled","hub_url":"http://h/","hub_token":"t"}`, 201, nil},
		{"POST", "/v1/snapshots/pull", `{"reference":"owner/name","tag":"pulled2"}`, 200, []string{"Accept", ndjsonType}},
		{"DELETE", "/v1/snapshots/br?cascade=true", "", 200, nil},
		{"DELETE", "/v1/snapshots/flat?cascade=true&force=true", "", 400, nil},
		{"POST", "/v1/workspaces", `{"name":"w","snapshot_tag":"pyagent","memory_limit_mib":64}`, 201, nil},
		{"GET", "/v1/workspaces", "", 200, nil},
		{"GET", "/v1/workspaces/w", "", 200, nil},
		{"POST", "/v1/workspaces/w/suspend", "", 200, nil},
		{"POST", "/v1/workspaces/w/resume", "", 200, nil},
		{"DELETE", "/v1/workspaces/w", "", 204, nil},
		{"GET", "/v1/workspaces/w", "", 404, nil},
		{"DELETE", "/v1/snapshots/a?force=true&cascade=false", "", 204, nil},
		{"DELETE", "/v1/snapshots/pyagent", "", 409, nil},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"pyagent","n":2,"memory_limit_mib":64,"timeout_secs":60,"prewarm":true}`, 201, nil},
		{"POST", "/v1/sandboxes", `{"tag":"pyagent","count":6}`, 207, []string{"Idempotency-Key", "k"}},
		{"GET", "/v1/sandboxes", "", 200, nil},
		{"GET", box, "", 200, nil},
		{"POST", box + "/ping", "", 200, nil},
		{"POST", box + "/exec", `{"args":["printf","\\377"],"env":{"A":"1"},"timeout_secs":5,"output_limit_bytes":10,"stdin":"x"}`, 200, nil},
		{"POST", box + "/exec", `{"args":["sh","-c","kill -9 $$"],"stdin_b64":"eA=="}`, 200, nil},
		{"POST", box + "/exec/stream", `{"args":["echo","x"]}`, 200, []string{"Content-Type", ndjsonType}},
		{"POST", box + "/exec/stream", `{"args":["true"]}`, 200, []string{"Content-Type", ndjsonType}},
		{"POST", box + "/eval", `{"code":"numpy.zeros(5).tolist()","timeout_secs":1.5}`, 200, nil},
		{"POST", box + "/eval", `{"code":"None"}`, 200, nil},
		{"POST", box + "/eval", `{"code":"1/0"}`, 200, nil},
		{"POST", box + "/eval", `{"code":"bytes"}`, 200, nil},
		{"POST", "/v1/eval", `{"sandboxes":["` + id + `"],"code":"1/0","timeout_secs":1.5}`, 200, nil},
		{"POST", "/v1/eval", `{"sandboxes":["none"],"code":"1"}`, 200, nil},
		{"POST", box + "/interrupt", "", 204, nil},
		{"PUT", box + "/files?path=/f&mode=0600&user=root&parents=true", "x", 204, []string{"Content-Type", "application/octet-stream"}},
		{"GET", box + "/files?path=/f&offset=0&length=1", "", 200, nil},
		{"GET", box + "/files/list?path=/", "", 200, nil},
		{"GET", box + "/files/stat?path=/f", "", 200, nil},
		{"POST", box + "/files/mkdir?path=/d&parents=true", "", 204, nil},
		{"POST", box + "/files/rename?from=/f&to=/g", "", 204, nil},
		{"DELETE", box + "/files?path=/g&recursive=true", "", 204, nil},
		{"GET", box + "/files/stat?path=/g", "", 404, nil},
		{"PUT", box + "/files?path=/a&attr=color=blue&attr=b=", "x", 204, []string{"Content-Type", "application/octet-stream"}},
		{"POST", box + "/files/mkdir?path=/d/e&user=root", "", 204, nil},
		{"GET", box + "/files/tree?path=/&depth=3", "", 200, nil},
		{"POST", box + "/files/compose", `{"target":"/b","sources":["/a"],"mode":"0600","user":"root","parents":true}`, 200, nil},
		{"GET", box + "/files/watch?path=/d&recursive=true&entries=true", "", 200, nil},
		{"GET", box + "/users/root", "", 200, nil},
		{"GET", box + "/users/nobody", "", 404, nil},
		{"GET", box + "/metrics", "", 200, nil},
		{"POST", box + "/processes", `{"args":["echo","hi"],"env":{"A":"1"},"tag":"short","timeout_secs":5}`, 200, nil},
		{"POST", box + "/processes", `{"args":["cat"],"tag":"cat","tty":{"cols":80,"rows":24},"detach":true}`, 201, nil},
		{"GET", box + "/processes", "", 200, nil},
		{"GET", box + "/processes/@short/attach", "", 200, nil},
		{"POST", box + "/processes/@cat/input", `{"data":"x"}`, 204, nil},
		{"POST", box + "/processes/@cat/input", "y", 204, []string{"Content-Type", "application/octet-stream"}},
		{"POST", box + "/processes/@cat/resize", `{"cols":100,"rows":30}`, 204, nil},
		{"DELETE", box + "/processes/@cat/input", "", 204, nil},
		{"POST", box + "/processes", `{"args":["sleep","60"],"tag":"sleep","stdin":true,"detach":true}`, 201, nil},
		{"POST", box + "/processes/@sleep/signal", `{"signal":"KILL"}`, 204, nil},
		{"POST", box + "/processes/@none/signal", `{"signal":"9"}`, 404, nil},
		{"POST", box + "/run", `{"code":"display","language":"python","cwd":"/","user":"root","env":{"A":"1"},"timeout_secs":5}`, 200, nil},
		{"POST", box + "/run", `{"code":"raise","context":"default"}`, 200, nil},
		{"POST", box + "/run", `{"code":"x","context":"none"}`, 404, nil},
		{"POST", box + "/contexts", `{"language":"bash","cwd":"/tmp","user":"root"}`, 201, nil},
		{"GET", box + "/contexts", "", 200, nil},
		{"POST", box + "/contexts/default/restart", "", 204, nil},
		{"POST", box + "/run", `{"code":"print","language":"javascript"}`, 200, nil},
		{"DELETE", box + "/contexts/javascript", "", 204, nil},
		{"GET", box + "/tcp/" + port, "", 101, []string{"Connection", "Upgrade", "Upgrade", "tcp"}},
		{"POST", box + "/timeout", `{"timeout_secs":60}`, 200, nil},
		{"POST", box + "/timeout", `{"timeout_secs":120.5,"extend":true}`, 200, nil},
		{"POST", box + "/timeout", `{"timeout_secs":null}`, 200, nil},
		{"POST", box + "/pause", "", 200, nil},
		{"POST", box + "/pause", "", 409, nil},
		{"GET", "/v1/sandboxes?state=paused&state=exited&metadata=a=b", "", 200, nil},
		{"POST", box + "/ping", "", 409, nil},
		{"POST", box + "/resume", `{"timeout_secs":60}`, 200, nil},
		{"POST", box + "/resume", "", 200, nil},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"pyagent","metadata":{"a":"b"},"env":{"A":"1"},"on_timeout":"pause","auto_resume":true}`, 201, nil},
		{"DELETE", box, "", 204, nil},
		{"DELETE", box, "", 404, nil},
	} {
		t.Run(fmt.Sprintf("%s %s %d", c.method, strings.ReplaceAll(c.path, id, "ID"), c.status), func(t *testing.T) {
			req, err := http.NewRequest(c.method, s.tcp+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if c.body != "" && !slices.Contains(c.headers, "Content-Type") {
				req.Header.Set("Content-Type", "application/json")
			}
			for i := 0; i < len(c.headers); i += 2 {
				req.Header.Set(c.headers[i], c.headers[i+1])
			}
			route, input := validateRequest(t, router, req, c.body)
			if strings.HasSuffix(route.Path, "/files/watch") {
				defer s.changing(id, "/d")()
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status {
				t.Fatalf("%s %s", resp.Status, body)
			}
			out := &openapi3filter.ResponseValidationInput{
				RequestValidationInput: input, Status: resp.StatusCode, Header: resp.Header,
				Options: &openapi3filter.Options{IncludeResponseStatus: true},
			}
			out.SetBodyBytes(body)
			if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
				t.Errorf("%s\n%v", body, err)
			}
			if c.status < 300 {
				seen[c.method+" "+route.Path] = true
			}
		})
	}
	for pattern := range operations(spec) {
		if !seen[pattern] {
			t.Errorf("no success of %s was tried", pattern)
		}
	}
}

// changing makes files in a directory until stop is called. A watch that begins
// meanwhile is told of one, and breaks.
func (s *site) changing(id, dir string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, name := range []string{"a", "overflow"} {
				path := fmt.Sprintf("%s/%s%d", dir, name, i)
				s.WriteFile(ctx, id, path, strings.NewReader(""), sandbox.WriteOptions{Mode: new(fs.FileMode(0o600))})
			}
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// closingPort returns a port at which connections are closed at once.
func closingPort(t *testing.T) string {
	t.Helper()
	l := listen(t, func(net.Conn) {})
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func validateRequest(t *testing.T, router routers.Router, req *http.Request, body string) (*routers.Route, *openapi3filter.RequestValidationInput) {
	t.Helper()
	route, params, err := router.FindRoute(req)
	if err != nil {
		t.Fatal(err)
	}
	input := &openapi3filter.RequestValidationInput{
		Request: req, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
		t.Errorf("the request: %v", err)
	}
	req.Body = io.NopCloser(strings.NewReader(body))
	return route, input
}

// firstLine lets the spec's schema of a stream be held against its first line.
func firstLine(body io.Reader, header http.Header, schema *openapi3.SchemaRef, enc openapi3filter.EncodingFn) (any, error) {
	all, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(all), []byte("\n"))
	return openapi3filter.JSONBodyDecoder(bytes.NewReader(line), header, schema, enc)
}
