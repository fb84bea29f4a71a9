package envd

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// eventStream is what Start and Connect return.
type eventStream[M any] interface {
	Receive() bool
	Msg() *M
	Err() error
	Close() error
}

type transcript struct {
	pid                    uint32
	stdout, stderr, screen string
	end                    *pb.ProcessEvent_EndEvent
	beats                  int
	err                    error
}

// collect reads a stream to its end and holds it against the order that is
// promised.
func collect[M any, S eventStream[M]](t *testing.T, stream S, event func(*M) *pb.ProcessEvent) (tr transcript) {
	t.Helper()
	for first := true; stream.Receive(); first = false {
		if tr.end != nil {
			t.Error("an event after the end")
		}
		switch e := event(stream.Msg()).Event.(type) {
		case *pb.ProcessEvent_Start:
			if !first {
				t.Error("start is not the first event")
			}
			tr.pid = e.Start.Pid
		case *pb.ProcessEvent_Data:
			tr.stdout += string(e.Data.GetStdout())
			tr.stderr += string(e.Data.GetStderr())
			tr.screen += string(e.Data.GetPty())
		case *pb.ProcessEvent_End:
			tr.end = e.End
		case *pb.ProcessEvent_Keepalive:
			tr.beats++
		}
	}
	tr.err = stream.Err()
	stream.Close()
	return tr
}

func shell(script string) *pb.StartRequest {
	no := false
	return &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: &no}
}

func start(ctx context.Context, t *testing.T, c pb.ProcessClient, req *pb.StartRequest) transcript {
	t.Helper()
	stream, err := c.Start(ctx, req)
	if err != nil {
		return transcript{err: err}
	}
	return collect(t, stream, (*pb.StartResponse).GetEvent)
}

func attach(ctx context.Context, t *testing.T, c pb.ProcessClient, ref *pb.ProcessSelector) transcript {
	t.Helper()
	stream, err := c.Connect(ctx, &pb.ConnectRequest{Process: ref})
	if err != nil {
		return transcript{err: err}
	}
	return collect(t, stream, (*pb.ConnectResponse).GetEvent)
}

func byPid(pid uint32) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Tag{Tag: tag}}
}

// stdin is an input.
func stdin(data string) *pb.ProcessInput {
	return &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte(data)}}
}

func TestStart(t *testing.T) {
	s := newSite(t)
	for name, opts := range map[string][]connect.ClientOption{
		"binary":      nil,
		"json":        {connect.WithProtoJSON()},
		"json+gzip":   {connect.WithProtoJSON(), connect.WithSendGzip()},
		"binary+gzip": {connect.WithSendGzip()},
	} {
		t.Run(name, func(t *testing.T) {
			req := shell(`echo "$GREETING $NAME from $USER"; echo oh >&2; exit 3`)
			req.Process.Envs = map[string]string{"NAME": "häß"}
			tr := start(as(t.Context(), "root"), t, s.processes(opts...), req)
			if tr.err != nil || tr.stdout != "hello häß from root\n" || tr.stderr != "oh\n" || tr.pid == 0 {
				t.Errorf("%+v", tr)
			}
			if e := tr.end; e.GetExitCode() != 3 || !e.GetExited() || e.GetStatus() != "exit status 3" || e.GetError() != "exit status 3" {
				t.Errorf("end %v", e)
			}
		})
	}
}

func TestStartEndsWell(t *testing.T) {
	s := newSite(t)
	tr := start(t.Context(), t, s.processes(), shell("cat; pwd"))
	if tr.err != nil || !strings.HasSuffix(tr.stdout, "/home/user\n") {
		t.Errorf("%+v", tr)
	}
	if e := tr.end; e.GetExitCode() != 0 || !e.GetExited() || e.GetStatus() != "exit status 0" || e.Error != nil {
		t.Errorf("end %v", e)
	}
	if spec := s.host.started[0]; spec.User != "user" || spec.Cwd != "" || spec.Stdin || spec.Timeout != 0 || s.host.lookups != 0 {
		t.Errorf("%+v, %d lookups", spec, s.host.lookups)
	}
}

func TestStartIsRefused(t *testing.T) {
	s := newSite(t)
	c := s.processes()
	nowhere := shell("true")
	dir := "gone"
	nowhere.Process.Cwd = &dir
	tilde := shell("true")
	other := "~other/x"
	tilde.Process.Cwd = &other
	wide := shell("true")
	wide.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 1 << 20, Rows: 1}}
	for _, k := range []struct {
		name, user string
		req        *pb.StartRequest
		code       connect.Code
		text       string
	}{
		{"cwd", "", nowhere, connect.CodeInvalidArgument, "cwd '/home/user/gone' does not exist"},
		{"user", "nobody-known", shell("true"), connect.CodeUnauthenticated, "invalid username: 'nobody-known'"},
		{"user and cwd", "nobody-known", nowhere, connect.CodeUnauthenticated, "invalid username: 'nobody-known'"},
		{"tilde", "", tilde, connect.CodeInvalidArgument, "cannot expand user-specific home dir"},
		{"program", "", &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/no/such"}}, connect.CodeInvalidArgument, "/no/such"},
		{"nothing", "", &pb.StartRequest{}, connect.CodeInvalidArgument, "process.cmd is missing"},
		{"terminal", "", wide, connect.CodeInvalidArgument, "1048576"},
	} {
		t.Run(k.name, func(t *testing.T) {
			ctx := t.Context()
			if k.user != "" {
				ctx = as(ctx, k.user)
			}
			wantCode(t, start(ctx, t, c, k.req).err, k.code, k.text)
		})
	}
}

// TestWire holds the bytes that the JavaScript SDK sends and expects against ours.
func TestWire(t *testing.T) {
	s := newSite(t)
	message := `{"process":{"cmd":"/bin/sh","args":["-c","printf 'a\\377'; exit 1"],"envs":{}},"stdin":false,"unknown":1}`
	envelope := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	resp, body := s.do(t, http.MethodPost, "/process.Process/Start", string(envelope)+message,
		"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1", "Connect-Timeout-Ms", "60000",
		"Keepalive-Ping-Interval", "50", "Authorization", "Basic dXNlcjo=")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/connect+json" {
		t.Fatal(resp.Status, resp.Header)
	}
	var got []string
	for b := []byte(body); len(b) > 0; {
		n := int(binary.BigEndian.Uint32(b[1:]))
		var v any
		if err := json.Unmarshal(b[5:5+n], &v); err != nil {
			t.Fatal(err)
		}
		canonical, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s", b[0], canonical))
		b = b[5+n:]
	}
	var first struct {
		Event struct{ Start struct{ Pid int } }
	}
	if err := json.Unmarshal([]byte(got[0][2:]), &first); err != nil || first.Event.Start.Pid == 0 {
		t.Fatalf("%s, %v", got[0], err)
	}
	want := []string{
		fmt.Sprintf(`0 {"event":{"start":{"pid":%d}}}`, first.Event.Start.Pid),
		`0 {"event":{"data":{"stdout":"` + base64.StdEncoding.EncodeToString([]byte("a\377")) + `"}}}`,
		`0 {"event":{"end":{"error":"exit status 1","exitCode":1,"exited":true,"status":"exit status 1"}}}`,
		`2 {}`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	pid := first.Event.Start.Pid
	resp, body = s.do(t, http.MethodPost, "/process.Process/SendSignal", fmt.Sprintf(`{"process":{"pid":%d},"signal":"SIGNAL_SIGKILL"}`, pid+1<<20),
		"Content-Type", "application/json", "Connect-Protocol-Version", "1")
	if want := fmt.Sprintf(`{"code":"not_found","message":"process with pid %d not found"}`, pid+1<<20); resp.StatusCode != 404 || body != want {
		t.Errorf("%d %s, want %s", resp.StatusCode, body, want)
	}
}

func TestInput(t *testing.T) {
	s := newSite(t)
	c := s.processes(connect.WithProtoJSON())
	req := shell("sort")
	req.Stdin = nil // as old SDKs send it
	tag := "sorter"
	req.Tag = &tag
	stream, err := c.Start(t.Context(), req)
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	if _, err := c.SendInput(t.Context(), &pb.SendInputRequest{Process: byPid(pid), Input: stdin("b\n")}); err != nil {
		t.Fatal(err)
	}
	in, err := c.StreamInput(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*pb.StreamInputRequest{
		{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: byTag("sorter")}}},
		{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: stdin("c\n")}}},
		{Event: &pb.StreamInputRequest_Keepalive{}},
		{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: stdin("a\n")}}},
	} {
		if err := in.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), &pb.ListRequest{})
	if err != nil || len(list.Processes) != 1 {
		t.Fatal(list, err)
	}
	if p := list.Processes[0]; p.Pid != pid || p.GetTag() != "sorter" || p.Config.Cmd != "/bin/sh" || !reflect.DeepEqual(p.Config.Args, []string{"-c", "sort"}) {
		t.Errorf("listed %v", p)
	}
	if _, err := c.CloseStdin(t.Context(), &pb.CloseStdinRequest{Process: byPid(pid)}); err != nil {
		t.Fatal(err)
	}
	if tr := collect(t, stream, (*pb.StartResponse).GetEvent); tr.stdout != "a\nb\nc\n" || tr.end.GetExitCode() != 0 {
		t.Errorf("%+v", tr)
	}
	_, err = c.SendInput(t.Context(), &pb.SendInputRequest{Process: byPid(pid), Input: stdin("late")})
	wantCode(t, err, connect.CodeFailedPrecondition, "input")
	if list, err := c.List(t.Context(), &pb.ListRequest{}); err != nil || len(list.Processes) != 0 {
		t.Errorf("after its end: %v, %v", list, err)
	}
}

func TestBadCalls(t *testing.T) {
	s := newSite(t)
	c := s.processes()
	streamed := func(messages ...*pb.StreamInputRequest) error {
		in, err := c.StreamInput(t.Context())
		if err != nil {
			return err
		}
		for _, m := range messages {
			if err := in.Send(m); err != nil {
				break // the answer tells why
			}
		}
		_, err = in.CloseAndReceive()
		return err
	}
	one := func(_ any, err error) error { return err }
	ctx := t.Context()
	for _, k := range []struct {
		name string
		err  error
		code connect.Code
		text string
	}{
		{"no selector", attach(ctx, t, c, nil).err, connect.CodeInvalidArgument, "selector is missing"},
		{"pid 0", attach(ctx, t, c, byPid(0)).err, connect.CodeNotFound, "pid 0"},
		{"large pid", attach(ctx, t, c, byPid(1<<32-1)).err, connect.CodeNotFound, "pid 4294967295"},
		{"unknown tag", attach(ctx, t, c, byTag("x")).err, connect.CodeNotFound, "process with tag x not found"},
		{"empty tag", attach(ctx, t, c, byTag("")).err, connect.CodeNotFound, "empty tag"},
		{"no input", one(c.SendInput(ctx, &pb.SendInputRequest{Process: byPid(1)})), connect.CodeInvalidArgument, "input is missing"},
		{"no signal", one(c.SendSignal(ctx, &pb.SendSignalRequest{Process: byPid(1)})), connect.CodeUnimplemented, "SIGNAL_UNSPECIFIED"},
		{"other signal", one(c.SendSignal(ctx, &pb.SendSignalRequest{Process: byPid(1), Signal: 2})), connect.CodeUnimplemented, "2"},
		{"resize", one(c.Update(ctx, &pb.UpdateRequest{Process: byPid(1 << 30), Pty: &pb.PTY{}})), connect.CodeNotFound, "pid 1073741824"},
		{"close", one(c.CloseStdin(ctx, &pb.CloseStdinRequest{Process: byPid(1 << 30)})), connect.CodeNotFound, "pid 1073741824"},
		{"data first", streamed(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{}}), connect.CodeInvalidArgument, "ahead of start"},
		{"empty event", streamed(&pb.StreamInputRequest{}), connect.CodeInvalidArgument, "event is missing"},
	} {
		t.Run(k.name, func(t *testing.T) { wantCode(t, k.err, k.code, k.text) })
	}
}

func TestTerminal(t *testing.T) {
	s := newSite(t)
	c := s.processes(connect.WithProtoJSON())
	req := shell("read line; echo got:$line")
	req.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 120, Rows: 40}}
	stream, err := c.Start(t.Context(), req)
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	if want := (sandbox.TTY{Cols: 120, Rows: 40}); *s.host.started[0].TTY != want {
		t.Errorf("a terminal of %v, want %v", *s.host.started[0].TTY, want)
	}
	if _, err := c.Update(t.Context(), &pb.UpdateRequest{Process: byPid(pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 90}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := s.host.Size(s.id, sandbox.ProcessRef{PID: int(pid)}), (sandbox.TTY{Cols: 90, Rows: defaultRows}); got != want {
		t.Errorf("size %v, want %v", got, want)
	}
	input := &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte("x\n")}}
	if _, err := c.SendInput(t.Context(), &pb.SendInputRequest{Process: byPid(pid), Input: input}); err != nil {
		t.Fatal(err)
	}
	if tr := collect(t, stream, (*pb.StartResponse).GetEvent); tr.screen != "got:x\n" || tr.stdout != "" {
		t.Errorf("%+v", tr)
	}
}

// TestDisconnect: a process does not mind that its client goes away, and tells the
// next one how it ended, as often as asked.
func TestDisconnect(t *testing.T) {
	s := newSite(t)
	c := s.processes()
	ctx, cancel := context.WithCancel(t.Context())
	req := shell("read x; echo $x; exit 4")
	req.Stdin = nil
	stream, err := c.Start(ctx, req)
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	cancel()
	for stream.Receive() {
		t.Error("an event after the client has gone")
	}
	stream.Close()
	second, err := c.Connect(t.Context(), &pb.ConnectRequest{Process: byPid(pid)})
	if err != nil || !second.Receive() {
		t.Fatal(err, second.Err())
	}
	if _, err := c.SendInput(t.Context(), &pb.SendInputRequest{Process: byPid(pid), Input: stdin("on\n")}); err != nil {
		t.Fatal(err)
	}
	if tr := collect(t, second, func(m *pb.ConnectResponse) *pb.ProcessEvent { return m.Event }); tr.stdout != "on\n" || tr.end.GetExitCode() != 4 {
		t.Errorf("%+v", tr)
	}
	for range 2 {
		if tr := attach(t.Context(), t, c, byPid(pid)); tr.err != nil || tr.pid != pid || tr.end.GetStatus() != "exit status 4" {
			t.Errorf("late: %+v", tr)
		}
	}
}

func TestKill(t *testing.T) {
	s := newSite(t)
	c := s.processes()
	stream, err := c.Start(t.Context(), shell("exec sleep 60"))
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	kill := &pb.SendSignalRequest{Process: byPid(pid), Signal: pb.Signal_SIGNAL_SIGKILL}
	if _, err := c.SendSignal(t.Context(), kill); err != nil {
		t.Fatal(err)
	}
	tr := collect(t, stream, (*pb.StartResponse).GetEvent)
	if e := tr.end; e.GetExitCode() != -1 || e.GetExited() || e.GetStatus() != "signal: killed" || e.GetError() != "signal: killed" {
		t.Errorf("%+v", tr)
	}
	_, err = c.SendSignal(t.Context(), kill)
	wantCode(t, err, connect.CodeNotFound, "not found")
}

func TestEndEvent(t *testing.T) {
	for _, c := range []struct {
		exit          sandbox.ProcessExit
		code          int32
		status, error string
	}{
		{sandbox.ProcessExit{}, 0, "exit status 0", ""},
		{sandbox.ProcessExit{Code: 137}, 137, "exit status 137", "exit status 137"},
		{sandbox.ProcessExit{Code: 143, Signal: "SIGTERM"}, -1, "signal: terminated", "signal: terminated"},
		{sandbox.ProcessExit{Code: 137, Signal: "SIGKILL", OOM: true}, -1, "signal: killed", "signal: killed (out of memory)"},
		{sandbox.ProcessExit{Code: 162, Signal: "SIGRT34"}, -1, "signal: SIGRT34", "signal: SIGRT34"},
	} {
		e := endEvent(c.exit).GetEnd()
		if e.ExitCode != c.code || e.Status != c.status || e.GetError() != c.error || e.Exited != (c.code >= 0) {
			t.Errorf("%+v: %v", c.exit, e)
		}
	}
}

// TestTimeout: the time that a client gives is the process's.
func TestTimeout(t *testing.T) {
	s := newSite(t)
	c := s.processes()
	message := `{"process":{"cmd":"/bin/sh","args":["-c","exec sleep 60"]}}`
	envelope := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	_, body := s.do(t, http.MethodPost, "/process.Process/Start", string(envelope)+message,
		"Content-Type", "application/connect+json", "Connect-Timeout-Ms", "300")
	if !strings.Contains(body, "deadline_exceeded") || strings.Contains(body, `"end"`) {
		t.Errorf("%q", body)
	}
	list, err := s.host.Processes(t.Context(), s.id)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if tr := attach(t.Context(), t, c, byPid(uint32(list[0].PID))); tr.end.GetStatus() != "signal: killed" {
		t.Errorf("the process has outlived its time: %+v", tr)
	}
	resp, body := s.do(t, http.MethodPost, "/process.Process/Start", string(envelope)+message,
		"Content-Type", "application/connect+json", "Connect-Timeout-Ms", "soon")
	if !strings.Contains(body, "invalid_argument") {
		t.Errorf("%s %q", resp.Status, body)
	}
}

// silentAttachment has nothing to say for a while.
type silentAttachment struct{ wait time.Duration }

func (a *silentAttachment) Process() sandbox.Process { return sandbox.Process{PID: 1} }
func (a *silentAttachment) Recv() (sandbox.Output, error) {
	time.Sleep(a.wait)
	return sandbox.Output{}, io.EOF
}
func (a *silentAttachment) Exit() sandbox.ProcessExit { return sandbox.ProcessExit{} }
func (a *silentAttachment) Close() error              { return nil }

func TestKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beats := 0
		c := &call{ping: 50 * time.Second}
		_, err := c.listen(t.Context(), &silentAttachment{3 * time.Minute}, func(e *pb.ProcessEvent) error {
			if e.GetKeepalive() != nil {
				beats++
			}
			return nil
		})
		if err != nil || beats != 3 {
			t.Errorf("%d beats, %v", beats, err)
		}
	})
}

func TestPingInterval(t *testing.T) {
	s := newSite(t)
	for given, want := range map[string]time.Duration{
		"": defaultPing, "50": 50 * time.Second, "0": minPing, "-5": minPing, "99999999999999999": defaultPing, "100000000": maxPing, "x": defaultPing,
	} {
		var got time.Duration
		s.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = s.call(r).ping })
		s.do(t, http.MethodGet, "/", "", "Keepalive-Ping-Interval", given)
		if got != want && !(given == "99999999999999999" && got == maxPing) {
			t.Errorf("%q: %v, want %v", given, got, want)
		}
	}
}

// Processes may share a tag, as they may in E2B's protocol.
func TestSharedTag(t *testing.T) {
	s := newSite(t)
	c := s.processes(connect.WithProtoJSON())
	tag := "both"
	for range 2 {
		req := shell("sleep 60")
		req.Tag = &tag
		stream, err := c.Start(t.Context(), req)
		if err != nil || !stream.Receive() {
			t.Fatal(err, stream.Err())
		}
		pid := stream.Msg().GetEvent().GetStart().GetPid()
		defer func() {
			_, _ = c.SendSignal(context.Background(), &pb.SendSignalRequest{Process: byPid(pid), Signal: pb.Signal_SIGNAL_SIGKILL})
		}()
	}
}
