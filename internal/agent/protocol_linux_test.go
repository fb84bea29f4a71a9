package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func frame(kind wire.Type, payload string) []byte {
	return wire.AppendFrame(nil, kind, []byte(payload))
}

// Whatever a client sends, it gets a typed error, and the server goes on.
func TestServerHostileClient(t *testing.T) {
	f := newGuest(t)
	exec := frame(wire.TypeRequest, `{"v":1,"op":"exec","args":{"argv":["cat"],"stdin":true}}`)
	for name, tc := range map[string]struct {
		send []byte
		code wire.Code
	}{
		"unknown frame":     {frame(200, ""), wire.CodeUnknownFrame},
		"not JSON":          {frame(wire.TypeRequest, "{"), wire.CodeBadRequest},
		"empty":             {frame(wire.TypeRequest, ""), wire.CodeBadRequest},
		"version 0":         {frame(wire.TypeRequest, `{"op":"ping"}`), wire.CodeUnsupportedVersion},
		"version 2":         {frame(wire.TypeRequest, `{"v":2,"op":"ping"}`), wire.CodeUnsupportedVersion},
		"unknown operation": {frame(wire.TypeRequest, `{"v":1,"op":"dance"}`), wire.CodeUnknownOp},
		"unknown option":    {frame(wire.TypeRequest, `{"v":1,"op":"exec","args":{"argv":["true"],"pty":true}}`), wire.CodeBadRequest},
		"wrong type":        {frame(wire.TypeRequest, `{"v":1,"op":"exec","args":{"argv":"true"}}`), wire.CodeBadRequest},
		"data after":        {frame(wire.TypeRequest, `{"v":1,"op":"stat","args":{"path":"/"} 5}`), wire.CodeBadRequest},
		"huge frame":        {[]byte{0xff, 0xff, 0xff, 0x7f, 1}, wire.CodeBadRequest},
		"cut off":           {exec[:len(exec)-3], wire.CodeBadRequest},
		"refresh layout":    {frame(wire.TypeRefresh, "\x03"), wire.CodeUnsupportedVersion},
		"limits too short":  {frame(wire.TypeRefresh, "\x02abc"), wire.CodeBadRequest},
		"refresh too short": {frame(wire.TypeRefresh, "\x01abc"), wire.CodeBadRequest},
		"window exceeded":   {append(bytes.Clone(exec), frame(wire.TypeStdin, strings.Repeat("x", wire.StdinWindow+1))...), wire.CodeBadRequest},
		"stdin after end":   {append(append(bytes.Clone(exec), frame(wire.TypeStdinEnd, "")...), frame(wire.TypeStdin, "x")...), wire.CodeBadRequest},
		"bad signal":        {append(bytes.Clone(exec), frame(wire.TypeSignal, `{"signal":0}`)...), wire.CodeBadRequest},
		"nobody":            {frame(wire.TypeRequest, `{"v":1,"op":"attach","args":{}}`), wire.CodeBadRequest},
		"negative process":  {frame(wire.TypeRequest, `{"v":1,"op":"attach","args":{"pid":-1}}`), wire.CodeBadRequest},
		"talking listener":  {append(frame(wire.TypeRequest, `{"v":1,"op":"exec","args":{"argv":["sleep","1"],"keep":true}}`), frame(wire.TypeStdin, "x")...), wire.CodeUnknownFrame},
		"input cut off":     {frame(wire.TypeRequest, `{"v":1,"op":"input","args":{"pid":1}}`), wire.CodeBadRequest},
		"too much input":    {append(frame(wire.TypeRequest, `{"v":1,"op":"input","args":{"pid":1}}`), frame(wire.TypeStdin, strings.Repeat("x", wire.StdinWindow+1))...), wire.CodeBadRequest},
		"wrong input":       {append(frame(wire.TypeRequest, `{"v":1,"op":"input","args":{"pid":1}}`), frame(wire.TypeData, "x")...), wire.CodeUnknownFrame},
		"large terminal":    {frame(wire.TypeRequest, `{"v":1,"op":"resize","args":{"pid":1,"cols":65536,"rows":1}}`), wire.CodeBadRequest},
		"large port":        {frame(wire.TypeRequest, `{"v":1,"op":"dial","args":{"port":65536}}`), wire.CodeBadRequest},
		"relative watch":    {frame(wire.TypeRequest, `{"v":1,"op":"watch","args":{"path":"tmp"}}`), wire.CodeBadRequest},
		"misplaced frame":   {append(bytes.Clone(exec), frame(wire.TypeEntries, `[]`)...), wire.CodeUnknownFrame},
	} {
		conn, err := net.Dial("unix", f.socket(wire.AgentPort))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(tc.send)
		_ = conn.(*net.UnixConn).CloseWrite()
		in := wire.NewReader(conn)
		kind, payload, err := in.Next()
		for err == nil && (kind == wire.TypeOK || kind == wire.TypeCredit) {
			kind, payload, err = in.Next()
		}
		if name == "stdin after end" && kind == wire.TypeExit {
			kind, err = wire.TypeError, nil // cat was faster
			payload, _ = json.Marshal(wire.Error{Code: tc.code})
		}
		if err != nil || kind != wire.TypeError || wire.DecodeError(payload).Code != tc.code {
			t.Errorf("%s: frame %d %q, error %v; want %s", name, kind, payload, err, tc.code)
		}
		conn.Close()
	}
	if info, err := f.Ping(t.Context()); err != nil || info.Protocol != wire.Version {
		t.Errorf("%+v, %v", info, err)
	}
}

// A restored server answers one connection at a time; one that says nothing must not stop it for long.
func TestSilentPeerDoesNotBlockRefresh(t *testing.T) {
	f := newGuest(t)
	if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("unix", f.socket(wire.AgentPort))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	go func() {
		time.Sleep(50 * time.Millisecond)
		silent.Close()
	}()
	if err := f.Refresh(t.Context(), identity(1)); err != nil {
		t.Fatal(err)
	}
}

// serveBytes is a guest that answers every connection with the same bytes and then closes it.
func serveBytes(t *testing.T, answer []byte) *agent.Client {
	t.Helper()
	return agent.NewClient(func(context.Context, uint32) (net.Conn, error) {
		host, guest := net.Pipe()
		go func() {
			defer guest.Close()
			in := wire.NewReader(guest)
			if _, _, err := in.Next(); err != nil {
				return
			}
			_, _ = guest.Write(answer)
		}()
		return host, nil
	})
}

// Whatever a guest answers, the client returns an error that says so.
func TestClientHostileGuest(t *testing.T) {
	started := frame(wire.TypeOK, `{"id":1,"pid":2}`)
	for name, answer := range map[string][]byte{
		"nothing":          nil,
		"half a header":    {1, 0},
		"half a frame":     frame(wire.TypeOK, "{}")[:6],
		"huge frame":       {0xff, 0xff, 0xff, 0xff, 3},
		"wrong frame":      frame(wire.TypeExit, "{}"),
		"not JSON":         frame(wire.TypeOK, "?"),
		"end after start":  started,
		"bad credit":       append(bytes.Clone(started), frame(wire.TypeCredit, "\x01")...),
		"too much credit":  append(bytes.Clone(started), frame(wire.TypeCredit, "\xff\xff\xff\xff")...),
		"file in exec":     append(bytes.Clone(started), frame(wire.TypeData, "x")...),
		"unreadable exit":  append(bytes.Clone(started), frame(wire.TypeExit, "x")...),
		"error unreadable": frame(wire.TypeError, "x"),
	} {
		c := serveBytes(t, answer)
		exit, err := c.Run(t.Context(), sh("true"), agent.Streams{Stdin: strings.NewReader("in")})
		if err == nil {
			t.Errorf("%s: exec succeeded with %+v", name, exit)
		}
		if _, typed := errors.AsType[*wire.Error](err); !typed && !errors.Is(err, agent.ErrLost) {
			t.Errorf("%s: error is %v", name, err)
		}
		if _, err := c.List(t.Context(), wire.ListRequest{Path: "/"}); err == nil {
			t.Errorf("%s: list succeeded", name)
		}
		if _, err := c.WriteFile(t.Context(), wire.WriteRequest{Path: "/x"}, endless{}); err == nil {
			t.Errorf("%s: write succeeded", name)
		}
		if a, err := c.AttachProcess(t.Context(), wire.ProcessRef{PID: 1}); err == nil {
			for err == nil {
				_, err = a.Recv()
			}
			if err == io.EOF {
				t.Errorf("%s: attachment ended with %+v", name, a.Exit())
			}
		}
		if list, err := c.Processes(t.Context()); err == nil {
			t.Errorf("%s: processes are %+v", name, list)
		}
		if w, err := c.Watch(t.Context(), wire.WatchRequest{Path: "/"}); err == nil {
			if change, err := w.Recv(); err == nil {
				t.Errorf("%s: watch told of %+v", name, change)
			}
		}
		c.Adopt(wire.RuntimeInfo{Name: "python", Port: 1, Starts: 1})
		if r, err := c.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1"}); err == nil {
			t.Errorf("%s: eval succeeded with %+v", name, r)
		}
	}
	c := serveBytes(t, bytes.Repeat(frame(wire.TypeStdout, strings.Repeat("x", 64<<10)), 100))
	c.Adopt(wire.RuntimeInfo{Name: "python", Port: 1, Starts: 1})
	if _, err := c.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: "1"}); !errors.Is(err, agent.ErrLost) {
		t.Errorf("endless output: %v", err)
	}
}

func TestClientDeadGuest(t *testing.T) {
	refused := errors.New("refused")
	c := agent.NewClient(func(context.Context, uint32) (net.Conn, error) { return nil, refused })
	if _, err := c.Ping(t.Context()); !errors.Is(err, agent.ErrLost) || !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	// A guest that never answers ends with the context.
	c = agent.NewClient(func(context.Context, uint32) (net.Conn, error) {
		host, _ := net.Pipe()
		return host, nil
	})
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
}
