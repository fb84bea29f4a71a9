package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

// forkMany makes n sandboxes.
func (s *site) forkMany(t testing.TB, n int) (ids []string) {
	t.Helper()
	boxes, _, err := s.c.Fork(context.Background(), client.ForkRequest{SnapshotTag: "pyagent", N: &n})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		ids = append(ids, b.ID)
	}
	return ids
}

// evalBody is the body of a request that evaluates code in many sandboxes.
func evalBody(t testing.TB, code string, ids ...string) string {
	t.Helper()
	body, err := json.Marshal(api.EvalAllRequest{Sandboxes: ids, Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// answers decodes the lines of an answer, sorted by sandbox.
func answers(t testing.TB, text string) (all []api.EvalAnswer) {
	t.Helper()
	for line := range strings.Lines(text) {
		if line == "\n" {
			continue
		}
		var a api.EvalAnswer
		if err := decodeJSON([]byte(line), &a); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b api.EvalAnswer) int { return cmp.Compare(a.SandboxID, b.SandboxID) })
	return all
}

func TestEvalAll(t *testing.T) {
	s := newSite(t, "")
	ids := s.forkMany(t, 50)
	resp, text := s.ask(t, "POST", "/v1/eval", evalBody(t, "1+1", ids...))
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != ndjsonType {
		t.Fatalf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	got := answers(t, text)
	slices.Sort(ids)
	if len(got) != len(ids) {
		t.Fatalf("%d answers", len(got))
	}
	for i, a := range got {
		if a.SandboxID != ids[i] || a.Error != nil || a.Result == nil || *a.Result.Result != "2" || string(a.Result.Value) != "2" {
			t.Errorf("%s answered %+v", ids[i], a)
		}
	}
	text, err := s.c.Metrics(context.Background())
	if want := "\nforkd_eval_duration_seconds_count 50\n"; err != nil || !strings.Contains(text, want) {
		t.Errorf("metrics lack %q, %v", want, err)
	}
	eventually(t, "the line of the log", func() bool { return strings.Contains(s.log.String(), "POST /v1/eval") })
	if log := s.log.String(); !strings.Contains(log, ids[0]) || !strings.Contains(log, ids[49]) || strings.Contains(log, "failed=") {
		t.Errorf("the log is %s", log)
	}
}

func TestEvalAllRefuses(t *testing.T) {
	list := loadSpec(t).Components.Schemas["EvalAllRequest"].Value.Properties["sandboxes"].Value
	if *list.MaxItems != maxEvals || *list.Items.Value.MaxLength != maxID {
		t.Errorf("the spec allows %d sandboxes with ids of %d, the code %d and %d", *list.MaxItems, *list.Items.Value.MaxLength, maxEvals, maxID)
	}
	s := newSite(t, "")
	id := s.fork(t)
	many := make([]string, maxEvals+1)
	for i := range many {
		many[i] = fmt.Sprint("sb", i)
	}
	for name, c := range map[string]struct{ body, says string }{
		"nothing":        {`{}`, "sandboxes: must be 1 to 1000, not 0"},
		"no sandboxes":   {`{"sandboxes":[],"code":"sleep"}`, "sandboxes: must be 1 to 1000, not 0"},
		"null":           {`{"sandboxes":null,"code":"sleep"}`, "sandboxes: must be 1 to 1000, not 0"},
		"too many":       {evalBody(t, "sleep", many...), "sandboxes: must be 1 to 1000, not 1001"},
		"one twice":      {evalBody(t, "sleep", id, "x", id), `sandboxes[2]: "` + id + `" is there already`},
		"no id":          {evalBody(t, "sleep", id, ""), "sandboxes[1]: required"},
		"a long id":      {evalBody(t, "sleep", id, strings.Repeat("x", maxID+1)), "sandboxes[1]: no id is longer than 64 bytes"},
		"no code":        {evalBody(t, "", id), "code: required"},
		"no time":        {`{"sandboxes":["` + id + `"],"code":"sleep","timeout_secs":0}`, "timeout_secs: must be over 0"},
		"not a list":     {`{"sandboxes":"` + id + `","code":"sleep"}`, "sandboxes: must be"},
		"unknown fields": {`{"sandboxes":["` + id + `"],"code":"sleep","all":true}`, `unknown field "all"`},
	} {
		t.Run(name, func(t *testing.T) {
			resp, text := s.ask(t, "POST", "/v1/eval", c.body)
			wantError(t, resp, text, 400, api.ErrorCodeInvalidArgument, c.says)
			if n := s.Running(); n != 0 {
				t.Errorf("%d evaluations began", n)
			}
		})
	}
}

// short is a domain in which some sandboxes fail in their own ways.
type short struct{ *servertest.Fake }

func (s short) Evaluate(ctx context.Context, id string, e *sandbox.Evaluation) (*sandbox.EvalResult, error) {
	switch id {
	case "full":
		return nil, &sandbox.Error{Code: sandbox.CapacityExceeded, Message: "no memory", Hint: "end others",
			Shortage: &sandbox.Shortage{Resource: "memory", Needed: 3, Free: 2, Held: 1}}
	case "broken":
		panic("BUG: released twice")
	case "garbled":
		return &sandbox.EvalResult{Value: json.RawMessage("{")}, nil
	}
	return s.Fake.Evaluate(ctx, id, e)
}

// TestEvalAllFailsByItself: one that fails says what it would have said alone, and the others
// answer as if it were not there.
func TestEvalAllFailsByItself(t *testing.T) {
	s := newSite(t, "")
	s.server.m = short{s.Fake}
	ids := s.forkMany(t, 3)
	if err := s.c.Kill(context.Background(), ids[1]); err != nil {
		t.Fatal(err)
	}
	odd := []string{ids[1], "none", "full"}
	resp, text := s.ask(t, "POST", "/v1/eval", evalBody(t, "1/0", append(ids, "none", "full", "broken", "garbled")...))
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status, text)
	}
	got := map[string]api.EvalAnswer{}
	for _, a := range answers(t, text) {
		got[a.SandboxID] = a
	}
	if len(got) != 7 {
		t.Fatalf("%d sandboxes answered: %s", len(got), text)
	}
	for _, id := range []string{ids[0], ids[2]} {
		if a := got[id]; a.Error != nil || a.Result == nil || a.Result.Error == nil || a.Result.Error.Type != "ZeroDivisionError" {
			t.Errorf("%s answered %+v", id, a)
		}
	}
	for _, id := range odd {
		_, alone := s.ask(t, "POST", "/v1/sandboxes/"+id+"/eval", `{"code":"1/0"}`)
		said, err := json.Marshal(got[id].Error)
		if err != nil || got[id].Result != nil || string(said) != strings.TrimSpace(alone) {
			t.Errorf("%s answered %s, alone %s", id, said, alone)
		}
	}
	for id, says := range map[string]string{"broken": "BUG: released twice", "garbled": "encoding the answer"} {
		if e := got[id].Error; e == nil || e.Code != api.ErrorCodeInternal || !strings.Contains(e.Error, says) || got[id].Result != nil {
			t.Errorf("%s answered %+v", id, got[id])
		}
	}
	eventually(t, "the line of the log", func() bool { return strings.Contains(s.log.String(), "failed=5") })
	if log := s.log.String(); !strings.Contains(log, "panic serving a request") || !strings.Contains(log, "eval_test.go") {
		t.Errorf("the log does not tell of the panic: %s", log)
	}
}

// TestEvalAllAnswersInTurn: who answers is heard while others are still at it, and a silent
// stream says that it lives. Who leaves ends what still runs.
func TestEvalAllAnswersInTurn(t *testing.T) {
	s := newSite(t, "")
	ids := s.forkMany(t, 3)
	body := evalBody(t, "sleep", append(ids, "none")...)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.tcp, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/eval HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	lines := bufio.NewReader(resp.Body)
	next := func() string {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	if line := next(); !strings.Contains(line, `"sandbox_id":"none"`) || !strings.Contains(line, `"not_found"`) {
		t.Errorf("the first line is %s", line)
	}
	if line := next(); line != "\n" {
		t.Errorf("then comes %s", line)
	}
	eventually(t, "the evaluations", func() bool { return s.Running() == 3 })
	if err := s.c.Interrupt(context.Background(), ids[1]); err != nil {
		t.Fatal(err)
	}
	line := next()
	for ; line == "\n"; line = next() {
	}
	if !strings.Contains(line, ids[1]) || !strings.Contains(line, "KeyboardInterrupt") {
		t.Errorf("the interrupted one says %s", line)
	}
	conn.Close()
	eventually(t, "the end of the others", func() bool { return s.Running() == 0 })
}

// TestEvalAllIsSentTogether: answers that come at the same time take few writes.
func TestEvalAllIsSentTogether(t *testing.T) {
	s := newSite(t, "")
	ids := s.forkMany(t, 200)
	sent := &countingWriter{header: http.Header{}}
	r, err := http.NewRequest("POST", "http://localhost/v1/eval", strings.NewReader(evalBody(t, "1+1", ids...)))
	if err != nil {
		t.Fatal(err)
	}
	s.server.EvalSandboxes(sent, r)
	if n := len(answers(t, sent.text.String())); n != 200 || sent.writes > 100 {
		t.Errorf("%d answers in %d writes", n, sent.writes)
	}
}

// large is a domain whose answers are large, and that counts how many were taken. Those in late are first to be sent, and
// their sandboxes begin with it and do not go on before it is over.
type large struct {
	*servertest.Fake
	taken, begun atomic.Int64
	late         map[string]bool
	all          chan struct{} // closed when as many are late as fit; nil if none is
	over         chan struct{}
}

func (l *large) Evaluate(ctx context.Context, id string, e *sandbox.Evaluation) (*sandbox.EvalResult, error) {
	if l.all != nil && !l.late[id] {
		<-l.all
	}
	if err := e.Room(ctx); err != nil {
		return nil, err
	}
	if l.late[id] {
		if l.begun.Add(1) == maxLarge {
			close(l.all)
		}
		<-l.over
	}
	l.taken.Add(1)
	return &sandbox.EvalResult{Stdout: bytes.Repeat([]byte("x"), 1<<20)}, nil
}

// slowWriter is a ResponseWriter whose client reads when it is let.
type slowWriter struct {
	countingWriter
	reads chan struct{}
}

func (s *slowWriter) Write(b []byte) (int, error) {
	<-s.reads
	return s.countingWriter.Write(b)
}

// TestEvalAllOfWhoDoesNotRead: large answers stay in their sandboxes until those before them were read, all come, and who
// leaves ends the wait.
func TestEvalAllOfWhoDoesNotRead(t *testing.T) {
	for name, leaves := range map[string]bool{"reads later": false, "leaves": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "")
			domain := &large{Fake: s.Fake}
			s.server.m = domain
			const many = maxLarge + 16
			ids := s.forkMany(t, many)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/v1/eval", strings.NewReader(evalBody(t, "large", ids...)))
			sent := &slowWriter{countingWriter{header: http.Header{}}, make(chan struct{})}
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.server.EvalSandboxes(sent, r)
			}()
			eventually(t, "the first answers", func() bool { return domain.taken.Load() == maxLarge })
			time.Sleep(50 * time.Millisecond)
			if n := domain.taken.Load(); n != maxLarge {
				t.Errorf("%d answers were taken, none of which was read", n)
			}
			if leaves {
				leave()
			}
			close(sent.reads)
			<-done
			failed := 0
			for _, a := range answers(t, sent.text.String()) {
				if a.Error != nil {
					failed++
				}
			}
			if !leaves && (failed > 0 || domain.taken.Load() != many) {
				t.Errorf("of %d answers %d failed", domain.taken.Load(), failed)
			}
			if leaves && failed == 0 {
				t.Error("the client has left, and all were taken")
			}
		})
	}
}

// TestAnswerThatIsGivenUp: who finds no room until long after its time limit is told that, and not that its sandbox is silent.
func TestAnswerThatIsGivenUp(t *testing.T) {
	full := room{make(chan struct{}, 1), make(chan struct{}, 1)}
	first := place{room: full}
	if err := first.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cause error
		says  string
	}{
		{&sandbox.Error{Code: sandbox.Timeout, Message: "sandbox x does not answer"}, "those before it were not read"},
		{&sandbox.Error{Code: sandbox.SandboxDead, Message: "it is gone"}, "it is gone"},
		{errors.New("the client has left"), "the client has left"},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(c.cause)
		second := place{room: full}
		if err := second.take(ctx); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("for %v it fails with %v", c.cause, err)
		}
		second.arrived()
		second.leave()
	}
	first.leave()
	if n := len(full.taken) + len(full.late); n != 0 {
		t.Errorf("%d places are taken after all have left", n)
	}
}

// TestFewAreLate: those who take long make room for others, but only as many as fit besides.
func TestFewAreLate(t *testing.T) {
	r := room{make(chan struct{}, 1), make(chan struct{}, 1)}
	var all [3]place
	for i := range all[:2] {
		all[i].room = r
		if err := all[i].take(t.Context()); err != nil {
			t.Fatal(err)
		}
		all[i].beLate()
	}
	all[2].room = r
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := all[2].take(ctx); err == nil {
		t.Error("a third answer was taken")
	}
	for i := range all {
		all[i].leave()
		all[i].beLate() // when it has left
	}
	if n := len(r.taken) + len(r.late); n != 0 {
		t.Errorf("%d places are taken after all have left", n)
	}
}

// TestEvalAllOfLateAnswers: sandboxes that take long to send a large answer do not keep others from sending theirs.
func TestEvalAllOfLateAnswers(t *testing.T) {
	s := newSite(t, "")
	const many = maxLarge + 6
	ids := s.forkMany(t, many)
	domain := &large{Fake: s.Fake, late: map[string]bool{}, all: make(chan struct{}), over: make(chan struct{})}
	for _, id := range ids[:maxLarge+5] {
		domain.late[id] = true
	}
	s.server.m = domain
	done := make(chan struct{})
	sent := &countingWriter{header: http.Header{}}
	go func() {
		defer close(done)
		s.server.EvalSandboxes(sent, httptest.NewRequest("POST", "http://localhost/v1/eval", strings.NewReader(evalBody(t, "large", ids...))))
	}()
	eventually(t, "the answer of the one that is not late", func() bool { return domain.taken.Load() == 1 })
	close(domain.over)
	<-done
	if n := len(answers(t, sent.text.String())); n != many {
		t.Errorf("%d answers", n)
	}
}

// countingWriter is a ResponseWriter that counts what is written to it.
type countingWriter struct {
	header http.Header
	text   strings.Builder
	writes int
}

func (c *countingWriter) Header() http.Header             { return c.header }
func (c *countingWriter) WriteHeader(int)                 {}
func (c *countingWriter) Flush()                          {}
func (c *countingWriter) SetReadDeadline(time.Time) error { return nil }
func (c *countingWriter) Write(b []byte) (int, error) {
	c.writes++
	return c.text.Write(b)
}

// BenchmarkEvalAll measures what REST adds to the evaluations of 100 sandboxes.
func BenchmarkEvalAll(b *testing.B) {
	s := newSite(b, "")
	body := evalBody(b, "numpy.zeros(5).tolist()", s.forkMany(b, 100)...)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := http.Post(s.tcp+"/v1/eval", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
