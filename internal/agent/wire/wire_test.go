package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

var update = flag.Bool("update", false, "rewrite the golden file")

func sampleRefresh() *Refresh {
	r := &Refresh{Generation: 7, WallNS: 1_800_000_000_123_456_789, MachineID: strings.Repeat("0a", 16), BootID: "01234567-89ab-4def-8123-456789abcdef", Hostname: "child-7"}
	for i := range r.Entropy {
		r.Entropy[i] = byte(i)
	}
	return r
}

func limitedRefresh() *Refresh {
	r := sampleRefresh()
	r.Limits = Limits{Owner: "sb0123456789ab", Processes: 100, DiskBytes: 1 << 30}
	return r
}

// samples are one frame of each kind with every field set, as peers of any version must read and write them.
func samples(t *testing.T) []struct {
	name    string
	kind    Type
	payload []byte
} {
	t.Helper()
	mode, length := uint32(0o750), int64(10)
	code := 3
	request := func(op Op, args any) []byte {
		b, err := EncodeRequest(op, args)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	object := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	refresh, err := sampleRefresh().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	limited, err := limitedRefresh().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	info := RuntimeInfo{Name: "python", Kind: "python", Port: 1025, PID: 9, Starts: 2, Alive: true, Version: "3.13.5", LastExit: "ended with status 3", Cwd: "/home/user", User: "u"}
	return []struct {
		name    string
		kind    Type
		payload []byte
	}{
		{"ping", TypeRequest, request(OpPing, nil)},
		{"exec", TypeRequest, request(OpExec, ExecRequest{Argv: []Name{"a", "\xff"}, Env: Names("K=V"), Cwd: "/", User: "u", Stdin: true, TimeoutMS: 1, StdoutLimit: 2, StderrLimit: 3})},
		{"read", TypeRequest, request(OpRead, ReadRequest{Path: "/f", Offset: 1, Length: &length})},
		{"write", TypeRequest, request(OpWrite, WriteRequest{Path: "/f", Mode: &mode, Owner: "u", Parents: true, NoReplace: true, Attrs: map[string]Name{"k": "v"}})},
		{"list", TypeRequest, request(OpList, ListRequest{Path: "/", Depth: 2, Attrs: true})},
		{"stat", TypeRequest, request(OpStat, StatRequest{Path: "/f", NoFollow: true, Attrs: true})},
		{"mkdir", TypeRequest, request(OpMkdir, MkdirRequest{Path: "/d", Parents: true, Mode: &mode, Owner: "u"})},
		{"rename", TypeRequest, request(OpRename, RenameRequest{From: "/a", To: "/b", NoReplace: true})},
		{"remove", TypeRequest, request(OpRemove, RemoveRequest{Path: "/d", Recursive: true})},
		{"runtime start", TypeRequest, request(OpRuntimeStart, RuntimeStart{Name: "p", Kind: "python", Port: 1025, Program: "/p", Imports: []string{"numpy"}, Warmup: []string{"1"}, Env: Names("K=V"), Cwd: "/", User: "u"})},
		{"runtime interrupt", TypeRequest, request(OpRuntimeInterrupt, RuntimeInterrupt{Name: "p", Eval: 5})},
		{"runtime recover", TypeRequest, request(OpRuntimeRecover, RuntimeRecover{Name: "p", Starts: 1, Kill: true})},
		{"context start", TypeRequest, request(OpContextStart, ContextStart{Name: "c", Kind: "python", Env: Names("K=V"), Cwd: "/", User: "u"})},
		{"context stop", TypeRequest, request(OpContextStop, ContextStop{Name: "c"})},
		{"relayed run", TypeRequest, request(OpRun, RelayedRun{Name: "bash", RunRequest: RunRequest{ID: 1, Code: "1", Env: Names("K=V")}})},
		{"branch", TypeRequest, request(OpBranch, BranchRequest{Number: 4})},
		{"release", TypeRelease, nil},
		{"resume", TypeRequest, request(OpResume, ResumeRequest{Branch: 4})},
		{"refresh", TypeRefresh, refresh},
		{"limited refresh", TypeRefresh, limited},
		{"error", TypeError, object(Error{Code: CodeUnsupportedVersion, Message: "m", Field: "v", Detail: "d", Min: 1, Max: 1})},
		{"info", TypeOK, object(Info{Agent: "dev", Protocol: 1, BootID: "b", Generation: 1, UptimeNS: 2, Quiesced: true, Cgroups: true, Runtimes: []RuntimeInfo{info}})},
		{"started", TypeOK, object(ExecStarted{ID: 1, PID: 2})},
		{"held", TypeOK, object(QuiesceReply{Processes: 3})},
		{"released", TypeOK, object(Released{HeldNS: 4_000_000})},
		{"interrupted", TypeOK, object(RuntimeInterrupted{Delivered: true})},
		{"stdin", TypeStdin, []byte("\x00\xff")},
		{"end of stdin", TypeStdinEnd, nil},
		{"signal", TypeSignal, object(SignalRequest{Signal: 15})},
		{"exit", TypeExit, object(Exit{Code: 137, Signal: 9, TimedOut: true, OOM: true, StdoutBytes: 1, StderrBytes: 2, StdoutCut: true, StderrCut: true, Background: true})},
		{"entries", TypeEntries, object([]FileInfo{{Name: "l", Kind: KindSymlink, Size: 1, Mode: 0o777, UID: 1, GID: 2, MtimeNS: 3, Target: "\xfe", Owner: "u", Group: "g", Dir: "d", Attrs: map[string]Name{"k": "\xff"}}})},
		{"keep", TypeRequest, request(OpExec, ExecRequest{Argv: Names("a"), Keep: true, Tag: "t", TTY: &TTY{80, 24}})},
		{"kept", TypeOK, object(ExecStarted{ID: 1, PID: 2, StartedNS: 3, Cwd: "/"})},
		{"processes", TypeRequest, request(OpProcesses, nil)},
		{"process list", TypeProcesses, object([]ProcessInfo{{PID: 2, Tag: "t", Argv: Names("a"), Env: Names("K=V"), Cwd: "/", User: "u", TTY: &TTY{80, 24}, Stdin: true, StartedNS: 3, Exit: &Exit{Code: 1}}})},
		{"attach", TypeRequest, request(OpAttach, ProcessRef{PID: 2})},
		{"input", TypeRequest, request(OpInput, ProcessRef{Tag: "t"})},
		{"signal process", TypeRequest, request(OpSignal, ProcessSignal{ProcessRef{PID: 2, Tag: "t"}, SignalRequest{15}})},
		{"resize", TypeRequest, request(OpResize, ResizeRequest{ProcessRef{PID: 2}, TTY{80, 24}})},
		{"terminal", TypeTerminal, []byte("\x1b[m")},
		{"dial", TypeRequest, request(OpDial, DialRequest{Port: 8080})},
		{"metrics", TypeRequest, request(OpMetrics, nil)},
		{"measured", TypeOK, object(Metrics{WallNS: 1, CPUs: 2, CPUBusyNS: 3, CPUTotalNS: 4, MemoryTotal: 5, MemoryUsed: 6, MemoryCache: 7, DiskTotal: 8, DiskUsed: 9})},
		{"user", TypeRequest, request(OpUser, UserRequest{Name: "u"})},
		{"account", TypeOK, object(User{Name: "u", UID: 1, GID: 2, Home: "/h", Shell: "/s"})},
		{"made", TypeOK, object(MkdirReply{Created: true, Info: FileInfo{Name: "d", Kind: KindDir}})},
		{"compose", TypeRequest, request(OpCompose, ComposeRequest{WriteRequest{Path: "/f", Mode: &mode, Owner: "u", Parents: true, NoReplace: true, Attrs: map[string]Name{"k": "v"}}, Names("/a", "/b")})},
		{"watch", TypeRequest, request(OpWatch, WatchRequest{Path: "/d", Recursive: true, Entries: true})},
		{"changes", TypeChanges, object([]Change{{Kind: ChangeCreate, Name: "a/b", Entry: &FileInfo{Name: "b", Kind: KindFile}}})},
		{"run", TypeRun, object(RunRequest{ID: 1, Code: "1", Env: Names("K=V")})},
		{"display", TypeDisplay, object(Display{Main: true, Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"1"`)}, Chart: json.RawMessage(`{"type":"line"}`)})},
		{"run end", TypeRunEnd, object(RunEnd{ID: 1, Count: 2, Error: &RunError{Name: "E", Value: "v", Traceback: "t", Interrupted: true}})},
		{"eval", TypeEval, object(EvalRequest{ID: 1, Code: "1", MaxOutput: 2, MaxValue: 3, MaxRepr: 4})},
		{"compile", TypeEval, object(EvalRequest{ID: 1, Code: "1", Compile: true})},
		{"compiled", TypeResult, object(EvalResult{ID: 1, Compiled: []byte("\xe3")})},
		{"eval compiled", TypeEvalCompiled, (&CompiledEval{ID: 1, Code: "é", Compiled: []byte("\xe3")}).Append(nil)},
		{"result", TypeResult, object(EvalResult{ID: 1, Type: "int", Value: json.RawMessage("1"), ValueOmitted: "too_large", Repr: "1", ReprCut: true, StdoutBytes: 1, StderrBytes: 2, StdoutCut: true, StderrCut: true,
			Error: &EvalError{Type: "SystemExit", Message: "m", Traceback: "t", ExitCode: &code, Interrupted: true}})},
	}
}

func TestGolden(t *testing.T) {
	var got strings.Builder
	for _, s := range samples(t) {
		b := AppendFrame(nil, s.kind, s.payload)
		fmt.Fprintf(&got, "# %s\n%s\n", s.name, hex.EncodeToString(b[:HeaderSize]))
		if slices.Contains([]Type{TypeRefresh, TypeStdin, TypeTerminal, TypeEvalCompiled}, s.kind) {
			fmt.Fprintf(&got, "%s\n", hex.EncodeToString(s.payload))
		} else if len(s.payload) > 0 {
			fmt.Fprintf(&got, "%s\n", s.payload)
		}
	}
	const path = "testdata/golden.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the encoding has changed; existing peers would not understand it. Got:\n%s", got.String())
	}
}

func TestFramesSurvivePieces(t *testing.T) {
	var stream []byte
	big := bytes.Repeat([]byte("x"), 3*firstRead+5)
	for _, s := range samples(t) {
		stream = AppendFrame(stream, s.kind, s.payload)
	}
	stream = AppendFrame(stream, TypeData, big)
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream)), "halves": iotest.HalfReader(bytes.NewReader(stream)),
	} {
		in := NewReader(r)
		for _, s := range samples(t) {
			kind, payload, err := in.Next()
			if err != nil || kind != s.kind || !bytes.Equal(payload, s.payload) {
				t.Fatalf("%s: %s: got %d %q, %v", name, s.name, kind, payload, err)
			}
		}
		if _, payload, err := in.Next(); err != nil || !bytes.Equal(payload, big) {
			t.Fatalf("%s: large frame: %d bytes, %v", name, len(payload), err)
		}
		if _, _, err := in.Next(); err != io.EOF {
			t.Fatalf("%s: at the end: %v", name, err)
		}
	}
	for cut := 1; cut < 30; cut++ {
		in := NewReader(bytes.NewReader(stream[:cut]))
		_, _, err := in.Next()
		for err == nil {
			_, _, err = in.Next()
		}
		if err != io.ErrUnexpectedEOF && err != io.EOF {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

func TestFrameSizes(t *testing.T) {
	if _, _, err := NewReader(bytes.NewReader([]byte{1, 0, 0, 1, 3})).Next(); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("announcing MaxFrame+1: %v", err)
	}
	w := NewWriter(io.Discard)
	if err := w.Frame(TypeData, make([]byte, MaxFrame+1)); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("writing MaxFrame+1: %v", err)
	}
	if err := w.Filled(TypeData, make([]byte, HeaderSize-1)); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("writing a buffer without a header: %v", err)
	}
	// A length without the bytes costs no memory.
	announced := []byte{0, 0, 0, 1, 3}
	if n := testing.AllocsPerRun(10, func() {
		in := NewReader(bytes.NewReader(announced))
		_, _, _ = in.Next()
		if cap(in.buf) > 2*firstRead {
			t.Errorf("%d bytes were allocated for a frame that did not come", cap(in.buf))
		}
	}); n > 20 {
		t.Errorf("%v allocations", n)
	}
	// Filled and Frame write the same.
	for _, size := range []int{0, 3, apart - 1, apart, MaxData} {
		var a, b bytes.Buffer
		filled := NewBuffer(size)
		for i := range size {
			filled[HeaderSize+i] = byte(i)
		}
		_ = NewWriter(&a).Frame(TypeData, filled[HeaderSize:])
		_ = NewWriter(&b).Filled(TypeData, filled)
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("frames of %d bytes differ", size)
		}
	}
}

func TestName(t *testing.T) {
	for _, n := range []Name{"", "a", "ü☕", "\xff", "a\x00b", "\"\\", "{\"base64\":\"\"}"} {
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var back Name
		if err := json.Unmarshal(b, &back); err != nil || back != n {
			t.Errorf("%q became %s, then %q, %v", n, b, back, err)
		}
	}
	for _, bad := range []string{`{"base64":"?"}`, `{"base65":""}`, `5`, `["a"]`, `{`} {
		if err := new(Name).UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%s is taken for a name", bad)
		}
	}
}

func TestRefreshValidation(t *testing.T) {
	for name, change := range map[string]func(*Refresh){
		"generation":      func(r *Refresh) { r.Generation = 0 },
		"clock":           func(r *Refresh) { r.WallNS = -1 },
		"machine-id":      func(r *Refresh) { r.MachineID = strings.Repeat("G", 32) },
		"machine-id size": func(r *Refresh) { r.MachineID = "0" },
		"boot-id":         func(r *Refresh) { r.BootID = strings.Repeat("0", 36) },
		"boot-id dashes":  func(r *Refresh) { r.BootID = "----" + strings.Repeat("0", 32) },
		"boot-id letters": func(r *Refresh) { r.BootID = strings.Repeat("0", 8) + "-0000-0000-0000-" + strings.Repeat("g", 12) },
		"no host name":    func(r *Refresh) { r.Hostname = "" },
		"long host name":  func(r *Refresh) { r.Hostname = strings.Repeat("x", 65) },
		"bad host name":   func(r *Refresh) { r.Hostname = "a\nb" },
		"dashed name":     func(r *Refresh) { r.Hostname = "-a" },
		"no owner":        func(r *Refresh) { r.Limits.Processes = 1 },
		"no number":       func(r *Refresh) { r.Limits.Owner = "a" },
		"long owner":      func(r *Refresh) { r.Limits = Limits{strings.Repeat("x", MaxOwner+1), 1, 0} },
		"bad owner":       func(r *Refresh) { r.Limits = Limits{"a b", 1, 0} },
	} {
		r := sampleRefresh()
		change(r)
		if _, err := r.AppendBinary(nil); AsError(err) == nil || AsError(err).Code != CodeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := sampleRefresh().String(); strings.Contains(s, "\x01") || !strings.Contains(s, "child-7") {
		t.Errorf("the text of a refresh is %q", s)
	}
}

func TestExitCodes(t *testing.T) {
	for want, e := range map[int]*Error{
		127: {Code: CodeNotFound, Field: "argv"}, 126: {Code: CodeNotExecutable}, 125: {Code: CodeNotFound, Field: "cwd"},
	} {
		if e.ExitCode() != want {
			t.Errorf("%+v has exit code %d, want %d", e, e.ExitCode(), want)
		}
	}
	if AsError(nil) != nil || AsError(io.EOF).Code != CodeInternal {
		t.Error("AsError is wrong about nil or plain errors")
	}
}

// FuzzReader reads any bytes as frames; what was read, written again, must be what was read from.
func FuzzReader(f *testing.F) {
	f.Add(AppendFrame(nil, TypeRequest, []byte(`{"v":1,"op":"ping"}`)))
	f.Add(AppendFrame(AppendFrame(nil, TypeStdin, []byte("ab")), TypeStdinEnd, nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := NewReader(bytes.NewReader(b))
		var again []byte
		for {
			kind, payload, err := in.Next()
			if err != nil {
				break
			}
			again = AppendFrame(again, kind, payload)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
	})
}

// FuzzRequest decodes any payload as each request; what it accepts must survive being encoded again.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"op":"exec","args":{"argv":["a",{"base64":"/w=="}]}}`))
	f.Add([]byte(`{"v":1,"op":"write","args":{"path":"/f","mode":420}}`))
	f.Add([]byte(`{"v":1,"op":"exec","args":{"argv":["a"],"keep":true,"tag":"t","tty":{"cols":80,"rows":24}}}`))
	f.Add([]byte(`{"v":1,"op":"compose","args":{"path":"/f","sources":["/a"],"attrs":{"k":{"base64":"/w=="}}}}`))
	f.Add([]byte(`{"v":1,"op":"resize","args":{"pid":7,"cols":80,"rows":24}}`))
	f.Add([]byte(`{"v":1,"op":"runtime_start","args":{"name":"p","imports":["numpy"]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRequest(b)
		if err != nil {
			return
		}
		for _, args := range []any{new(ExecRequest), new(ReadRequest), new(WriteRequest), new(ListRequest), new(StatRequest), new(MkdirRequest),
			new(RenameRequest), new(RemoveRequest), new(RuntimeStart), new(RuntimeInterrupt), new(RuntimeRecover), new(struct{}),
			new(ProcessRef), new(ProcessSignal), new(ResizeRequest), new(DialRequest), new(UserRequest), new(ComposeRequest), new(WatchRequest)} {
			if r.DecodeArgs(args) != nil {
				continue
			}
			payload, err := EncodeRequest(r.Op, args)
			if err != nil {
				t.Fatal(err)
			}
			again, err := DecodeRequest(payload)
			if err != nil {
				t.Fatal(err)
			}
			back := reflect.New(reflect.TypeOf(args).Elem()).Interface()
			if err := again.DecodeArgs(back); err != nil {
				t.Fatalf("%s: %v", payload, err)
			}
			if third, _ := EncodeRequest(r.Op, back); !bytes.Equal(payload, third) {
				t.Errorf("%s became %s", payload, third)
			}
		}
	})
}

// FuzzRefresh decodes any bytes as a refresh.
func FuzzRefresh(f *testing.F) {
	b, err := sampleRefresh().AppendBinary(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	if b, err = limitedRefresh().AppendBinary(nil); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		r := Refresh{Limits: Limits{Owner: "former", Processes: 1}}
		if r.UnmarshalBinary(b) != nil {
			return
		}
		if again, err := r.AppendBinary(nil); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x became %x, %v", b, again, err)
		}
	})
}

func TestWholeFrame(t *testing.T) {
	frame := AppendFrame(nil, TypeRefresh, []byte("payload"))
	if kind, payload, ok := WholeFrame(frame); !ok || kind != TypeRefresh || string(payload) != "payload" {
		t.Errorf("whole frame is %d %q, %t", kind, payload, ok)
	}
	for cut := range frame {
		if _, _, ok := WholeFrame(frame[:cut]); ok {
			t.Errorf("%d bytes pass for a frame of %d", cut, len(frame))
		}
	}
	for _, b := range [][]byte{append(frame, 0), {0xff, 0xff, 0xff, 0xff, 2}} {
		if _, _, ok := WholeFrame(b); ok {
			t.Errorf("%x passes for a frame", b)
		}
	}
}
