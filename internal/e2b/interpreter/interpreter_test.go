package interpreter

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// fakeHost is one sandbox, whose interpreter is a function.
type fakeHost struct {
	run      func(ctx context.Context, spec sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error)
	spec     sandbox.RunSpec
	created  sandbox.ContextSpec
	contexts []sandbox.CodeContext
	restarts []string
}

func fault(code sandbox.Code, text string) error {
	return &sandbox.Error{Code: code, Message: text, Hint: "do something"}
}

func (h *fakeHost) RunCode(ctx context.Context, _ string, spec sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
	h.spec = spec
	return h.run(ctx, spec, event)
}

func (h *fakeHost) CreateContext(_ context.Context, _ string, spec sandbox.ContextSpec) (*sandbox.CodeContext, error) {
	h.created = spec
	if spec.Language == "cobol" {
		return nil, fault(sandbox.Unsupported, "no such language")
	}
	c := sandbox.CodeContext{ID: "c1", Language: spec.Language, Cwd: "/home/user"}
	h.contexts = append(h.contexts, c)
	return &c, nil
}

func (h *fakeHost) Contexts(context.Context, string) ([]sandbox.CodeContext, error) {
	return h.contexts, nil
}

func (h *fakeHost) has(id string) error {
	if !slices.ContainsFunc(h.contexts, func(c sandbox.CodeContext) bool { return c.ID == id }) {
		return fault(sandbox.NotFound, "no such context")
	}
	return nil
}

func (h *fakeHost) RemoveContext(_ context.Context, _, id string) error {
	err := h.has(id)
	h.contexts = slices.DeleteFunc(h.contexts, func(c sandbox.CodeContext) bool { return c.ID == id })
	return err
}

func (h *fakeHost) RestartContext(_ context.Context, _, id string) error {
	h.restarts = append(h.restarts, id)
	return h.has(id)
}

func handler(h Host, rec front.Record) http.Handler {
	s := New(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target := &front.Target{ID: "sb000000000001", Port: front.InterpreterPort, Record: rec}
		s.ServeHTTP(w, r.WithContext(front.WithTarget(r.Context(), target)))
	})
}

func post(h http.Handler, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// lines returns the events of an answer, without their timestamps.
func lines(t *testing.T, body string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(body) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("line %q: %v", line, err)
		}
		if e["type"] == "stdout" || e["type"] == "stderr" {
			if at, ok := e["timestamp"].(string); !ok {
				t.Errorf("no timestamp in %q", line)
			} else if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
				t.Error(err)
			}
		}
		delete(e, "timestamp")
		all = append(all, e)
	}
	return all
}

type object = map[string]any

func TestExecute(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	h := &fakeHost{run: func(_ context.Context, _ sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
		return &sandbox.RunResult{Count: 7}, errors.Join(
			event(sandbox.RunEvent{Stdout: "häß\u2028😀\n"}),
			event(sandbox.RunEvent{Stderr: "oh <no>"}),
			event(sandbox.RunEvent{Result: &sandbox.RichResult{Data: map[string]json.RawMessage{
				"image/png": raw(`"AAAA"`), "text/plain": raw(`"<Figure>"`), "text/x-own": raw(`"x"`), "text/html": raw(`{bad`), "type": raw(`"result2"`),
			}, Chart: raw("{\n\"type\":\"line\"}")}}),
			event(sandbox.RunEvent{Result: &sandbox.RichResult{Main: true, Data: map[string]json.RawMessage{
				"text/plain": raw(`"'a\"b'"`), "application/json": raw(`{"k":[1]}`), "text/latex": raw("null"),
			}}}),
		)
	}}
	w := post(handler(h, front.Record{}), "/execute", `{"code":"x","env_vars":{"A":"1"},"language":" JS "}`)
	want := []map[string]any{
		{"type": "stdout", "text": "häß\u2028😀\n"},
		{"type": "stderr", "text": "oh <no>"},
		{"type": "result", "is_main_result": false, "png": "AAAA", "text": "<Figure>", "chart": object{"type": "line"}, "text/x-own": "x", "extra": object{"text/x-own": "x"}},
		{"type": "result", "is_main_result": true, "text": `a"b`, "json": object{"k": []any{1.0}}},
		{"type": "number_of_executions", "execution_count": 7.0},
		{"type": "end_of_execution"},
	}
	if got := lines(t, w.Body.String()); w.Code != http.StatusOK || !reflect.DeepEqual(got, want) {
		t.Errorf("%d\n%v\nwant\n%v", w.Code, got, want)
	}
	if i := strings.IndexFunc(w.Body.String(), func(r rune) bool { return r > unicode.MaxASCII }); i >= 0 {
		t.Errorf("a byte beyond ASCII at %d", i)
	}
	wantSpec := sandbox.RunSpec{Code: "x", Language: "javascript", Env: map[string]string{"A": "1"}, User: "user"}
	if !reflect.DeepEqual(h.spec, wantSpec) {
		t.Errorf("ran %+v, want %+v", h.spec, wantSpec)
	}
}

func TestExecuteEnds(t *testing.T) {
	ends := func(events ...map[string]any) []map[string]any {
		return append(events, object{"type": "end_of_execution"})
	}
	for _, c := range []struct {
		name, body string
		result     *sandbox.RunResult
		err        error
		status     int
		events     []map[string]any
		text       string
	}{
		{"exception", `{"code":"1/0"}`, &sandbox.RunResult{Count: 1, Error: &sandbox.EvalError{Type: "ZeroDivisionError", Message: "division by zero", Traceback: "at 1"}}, nil, 200,
			ends(object{"type": "number_of_executions", "execution_count": 1.0}, object{"type": "error", "name": "ZeroDivisionError", "value": "division by zero", "traceback": "at 1"}), ""},
		{"lost", `{"code":"exit"}`, &sandbox.RunResult{Lost: true}, nil, 200,
			ends(object{"type": "error", "name": "UnexpectedEndOfExecution", "traceback": "", "value": "the interpreter ended before the execution was finished; it was started again without its state"},
				object{"type": "unexpected_end_of_execution"}), ""},
		{"language", `{"code":"x","language":"cobol"}`, nil, fault(sandbox.Unsupported, "no cobol"), 404, nil, "no cobol; do something"},
		{"no such context", `{"code":"x","context_id":"c9"}`, nil, fault(sandbox.NotFound, "?"), 404, nil, "Context c9 not found"},
		{"both", `{"code":"x","context_id":"c","language":"python"}`, nil, nil, 400, nil, "Only one of context_id or language can be provided"},
		{"nulls", `{"code":"","context_id":null,"language":null,"env_vars":null}`, &sandbox.RunResult{}, nil, 200, ends(), ""},
		{"no code", `{}`, nil, nil, 422, nil, "invalid request body: code is missing"},
		{"two values", `{"code":"a"}{"code":"b"}`, nil, nil, 422, nil, "invalid request body: more than one value"},
		{"dead", `{"code":"x"}`, nil, fault(sandbox.SandboxDead, "it is gone"), 502, nil, "it is gone; do something"},
		{"fault", `{"code":"x"}`, nil, errors.New("no idea"), 500, nil, "no idea"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &fakeHost{run: func(context.Context, sandbox.RunSpec, func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
				return c.result, c.err
			}}
			w := post(handler(h, front.Record{}), "/execute", c.body)
			if w.Code != c.status {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			if c.events == nil {
				if w.Body.String() != c.text {
					t.Errorf("body %q, want %q", w.Body, c.text)
				}
			} else if got := lines(t, w.Body.String()); !reflect.DeepEqual(got, c.events) {
				t.Errorf("\n%v\nwant\n%v", got, c.events)
			}
		})
	}
}

// TestSilence: a client hears of the start soon and then every five seconds.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{run: func(context.Context, sandbox.RunSpec, func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
			time.Sleep(13 * time.Second)
			return nil, fault(sandbox.Timeout, "too long")
		}}
		w := post(handler(h, front.Record{}), "/execute", `{"code":"x"}`)
		want := []map[string]any{
			{"type": "keepalive"}, {"type": "keepalive"},
			{"type": "error", "name": "ExecutionTimeout", "value": "too long; do something", "traceback": ""},
			{"type": "end_of_execution"},
		}
		if got := lines(t, w.Body.String()); w.Code != 200 || !reflect.DeepEqual(got, want) {
			t.Errorf("%d\n%v\nwant\n%v", w.Code, got, want)
		}
	})
}

func TestStreamsAndInterrupts(t *testing.T) {
	interrupted := make(chan error, 1)
	h := &fakeHost{run: func(ctx context.Context, _ sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
		if err := event(sandbox.RunEvent{Stdout: "first"}); err != nil {
			return nil, err
		}
		<-ctx.Done()
		interrupted <- ctx.Err()
		return nil, ctx.Err()
	}}
	server := httptest.NewServer(handler(h, front.Record{}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/execute", strings.NewReader(`{"code":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, "first") {
		t.Fatalf("%q, %v", line, err)
	}
	cancel()
	if err := <-interrupted; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestContexts(t *testing.T) {
	h := &fakeHost{}
	s := handler(h, front.Record{User: "ann"})
	do := func(method, path, body string, status int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != status || w.Body.String() != want {
			t.Errorf("%s %s: %d %q, want %d %q", method, path, w.Code, w.Body, status, want)
		}
	}
	do("GET", "/contexts", "", 200, `[]`)
	do("POST", "/contexts", `{"language":"TS","cwd":"/w"}`, 200, `{"id":"c1","language":"typescript","cwd":"/home/user"}`)
	if want := (sandbox.ContextSpec{Language: "typescript", Cwd: "/w", User: "ann"}); h.created != want {
		t.Errorf("created %+v, want %+v", h.created, want)
	}
	do("GET", "/contexts", "", 200, `[{"id":"c1","language":"typescript","cwd":"/home/user"}]`)
	do("POST", "/contexts/c1/restart", "", 200, `null`)
	do("POST", "/contexts/c2/restart", "", 404, "Context c2 not found")
	do("DELETE", "/contexts/c1", "", 200, `null`)
	do("DELETE", "/contexts/c1", "", 404, "Context c1 not found")
	do("POST", "/contexts", `{"language":"cobol"}`, 404, "no such language; do something")
	do("POST", "/contexts", `{`, 422, "invalid request body: unexpected EOF")
	do("GET", "/health", "", 200, `"OK"`)
	do("PUT", "/contexts", "", 405, "Method Not Allowed\n")
}

func TestToken(t *testing.T) {
	h := &fakeHost{run: func(context.Context, sandbox.RunSpec, func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
		return &sandbox.RunResult{}, nil
	}}
	s := handler(h, front.Record{EnvdToken: "secret"})
	for _, c := range []struct {
		path, token string
		status      int
	}{
		{"/execute", "", 401}, {"/execute", "secre", 401}, {"/execute", "secret", 200},
		{"/contexts", "", 200}, {"/contexts", "wrong", 401}, {"/contexts", "secret", 200},
	} {
		if w := post(s, c.path, `{"code":""}`, tokenHeader, c.token); w.Code != c.status {
			t.Errorf("%s with %q: %d", c.path, c.token, w.Code)
		}
	}
}

func TestLargeRequest(t *testing.T) {
	s := handler(&fakeHost{}, front.Record{})
	body := io.MultiReader(strings.NewReader(`{"code":"`), strings.NewReader(strings.Repeat("a", maxRequest)), strings.NewReader(`"}`))
	r := httptest.NewRequest(http.MethodPost, "/execute", body)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Error(w.Code)
	}
}

func FuzzResult(f *testing.F) {
	f.Add("text/plain", []byte(`"'x'"`), []byte(`{"type":"bar"}`))
	f.Add("e2b/chart", []byte("{\n}"), []byte("nul"))
	f.Add("😀", []byte(`"\ud83d"`), []byte("\xff"))
	f.Fuzz(func(t *testing.T, kind string, form, chart []byte) {
		s := &stream{}
		s.line(resultEvent(&sandbox.RichResult{Data: map[string]json.RawMessage{kind: form}, Chart: chart}))
		line := string(s.buf)
		if strings.Count(line, "\n") != 1 || strings.ContainsFunc(line, func(r rune) bool { return r > unicode.MaxASCII }) {
			t.Fatalf("not a line of ASCII: %q", line)
		}
		if got := lines(t, line); len(got) != 1 || got[0]["type"] != "result" {
			t.Fatalf("%q", line)
		}
	})
}
