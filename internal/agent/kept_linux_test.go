package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func (f *fixture) keep(t *testing.T, req wire.ExecRequest) *agent.Attachment {
	t.Helper()
	a, err := f.StartProcess(t.Context(), req)
	if err != nil {
		t.Fatalf("starting %q: %v", req.Argv, err)
	}
	t.Cleanup(func() {
		a.Close()
		_ = kill(-a.Info.PID)
	})
	return a
}

func (f *fixture) attach(t *testing.T, ref wire.ProcessRef) *agent.Attachment {
	t.Helper()
	a, err := f.AttachProcess(t.Context(), ref)
	if err != nil {
		t.Fatalf("attaching to %+v: %v", ref, err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// rest reads an attachment to the end of the process.
func rest(t *testing.T, a *agent.Attachment) (out string, exit wire.Exit) {
	t.Helper()
	var b bytes.Buffer
	for {
		chunk, err := a.Recv()
		if err == io.EOF {
			return b.String(), a.Exit()
		}
		if err != nil {
			t.Fatalf("after %q: %v", b.String(), err)
		}
		b.Write(chunk.Data)
	}
}

// until reads an attachment until what came contains the text.
func until(t *testing.T, a *agent.Attachment, text string) string {
	t.Helper()
	var b bytes.Buffer
	watchdog := time.AfterFunc(20*time.Second, func() { a.Close() })
	defer watchdog.Stop()
	for !strings.Contains(b.String(), text) {
		chunk, err := a.Recv()
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, b.String(), err)
		}
		b.Write(chunk.Data)
	}
	return b.String()
}

func (f *fixture) type_(t *testing.T, a *agent.Attachment, text string) {
	t.Helper()
	if err := f.WriteProcess(t.Context(), wire.ProcessRef{PID: a.Info.PID}, []byte(text)); err != nil {
		t.Fatalf("writing %q: %v", text, err)
	}
}

func ref(a *agent.Attachment) wire.ProcessRef { return wire.ProcessRef{PID: a.Info.PID} }

func TestKeptProcessOutlivesItsConnection(t *testing.T) {
	f := newGuest(t)
	dir := t.TempDir()
	req := wire.ExecRequest{Argv: wire.Names("sh", "-c", `echo begun; while read x; do $x; done; echo over; exit 3`),
		Env: wire.Names("A=B"), Cwd: wire.Name(dir), Stdin: true, Tag: "worker"}
	before := time.Now()
	a := f.keep(t, req)
	until(t, a, "begun\n")
	a.Close()

	list, err := f.Processes(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, p := range []wire.ProcessInfo{list[0], a.Info} {
		started := time.Unix(0, p.StartedNS)
		if p.PID != a.Info.PID || p.Tag != "worker" || !slices.Equal(p.Argv, req.Argv) || !slices.Equal(p.Env, req.Env) ||
			p.Cwd != req.Cwd || !p.Stdin || p.TTY != nil || p.Exit != nil || started.Before(before) || time.Since(started) < 0 {
			t.Errorf("described as %+v", p)
		}
	}
	// What it writes while nobody listens is dropped.
	f.type_(t, a, "head -c 1000000 /dev/zero\ntouch mark\n")
	eventually(t, "the output has been dropped", func() bool { _, err := os.Stat(dir + "/mark"); return err == nil })
	b := f.attach(t, wire.ProcessRef{Tag: "worker"})
	f.type_(t, a, "echo two\n")
	if got := until(t, b, "two\n"); len(got) > 200000 { // what was in the pipe
		t.Errorf("an attachment got %d bytes that were written before", len(got))
	}
	if err := f.CloseProcessInput(t.Context(), ref(a)); err != nil {
		t.Fatal(err)
	}
	if out, exit := rest(t, b); out != "over\n" || exit.Code != 3 {
		t.Errorf("%q, %+v", out, exit)
	}
	// Its end is remembered.
	for range 2 {
		c := f.attach(t, ref(a))
		if out, exit := rest(t, c); out != "" || exit.Code != 3 || c.Info.Exit == nil || c.Info.Exit.Code != 3 {
			t.Errorf("after the end: %q, %+v, %+v", out, exit, c.Info)
		}
	}
	if list, err := f.Processes(t.Context()); err != nil || len(list) != 1 || list[0].Exit == nil || list[0].Exit.Code != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	wantCode(t, f.WriteProcess(t.Context(), ref(a), []byte("x")), wire.CodeNotFound)
	wantCode(t, f.SignalProcess(t.Context(), ref(a), 15), wire.CodeNotFound)
}

func TestKeptProcessStarterMissesNothing(t *testing.T) {
	f := newGuest(t)
	for i := range 50 {
		a := f.keep(t, sh(fmt.Sprintf("echo %d; echo e >&2; exit %d", i, i)))
		out, exit := rest(t, a)
		if len(out) != len(fmt.Sprintln(i))+2 || !strings.Contains(out, fmt.Sprintln(i)) || exit.Code != i {
			t.Fatalf("%d: %q, %+v", i, out, exit)
		}
	}
}

// All that are attached get the same, and hold the process up while they do not read; one that leaves does so no more.
func TestKeptProcessHasManyListeners(t *testing.T) {
	f := newGuest(t)
	req := sh("read x; seq 200000; exit 7")
	req.Stdin = true
	a := f.keep(t, req)
	slow := f.attach(t, ref(a))
	listeners := []*agent.Attachment{a, f.attach(t, ref(a)), f.attach(t, ref(a))}
	f.type_(t, a, "go\n")
	outs := make([]string, len(listeners))
	var wg sync.WaitGroup
	for i, l := range listeners {
		wg.Go(func() {
			var exit wire.Exit
			if outs[i], exit = rest(t, l); exit.Code != 7 {
				t.Errorf("%+v", exit)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	if !f.alive(t, a.Info.PID) {
		t.Error("the process did not wait for one that does not read")
	}
	if _, err := slow.Recv(); err != nil {
		t.Error(err)
	}
	slow.Close()
	wg.Wait()
	want := strings.Builder{}
	for i := range 200000 {
		fmt.Fprintln(&want, i+1)
	}
	for i, out := range outs {
		if out != want.String() {
			t.Errorf("listener %d got %d bytes, want %d", i, len(out), want.Len())
		}
	}
}

func TestKeptProcessInput(t *testing.T) {
	f := newGuest(t)
	// More than a window, and more than the command wants.
	a := f.keep(t, wire.ExecRequest{Argv: wire.Names("wc", "-c"), Stdin: true})
	if err := f.WriteProcess(t.Context(), ref(a), bytes.Repeat([]byte("x"), 3<<20+1)); err != nil {
		t.Fatal(err)
	}
	if err := f.CloseProcessInput(t.Context(), ref(a)); err != nil {
		t.Fatal(err)
	}
	if out, _ := rest(t, a); out != fmt.Sprintln(3<<20+1) {
		t.Errorf("wc counted %q", out)
	}
	// Writers of one process do not mix within a write.
	a = f.keep(t, wire.ExecRequest{Argv: wire.Names("cat"), Stdin: true})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				f.type_(t, a, strings.Repeat(string(rune('a'+i)), 1000)+"\n")
			}
		})
	}
	go func() {
		wg.Wait()
		_ = f.CloseProcessInput(t.Context(), ref(a))
	}()
	out, _ := rest(t, a)
	for line := range strings.SplitSeq(strings.TrimSuffix(out, "\n"), "\n") {
		if line != strings.Repeat(line[:1], 1000) {
			t.Fatalf("writes have mixed: %.80q…", line)
		}
	}
	if len(out) != 80*1001 {
		t.Errorf("%d bytes came back", len(out))
	}
	a = f.keep(t, wire.ExecRequest{Argv: wire.Names("sleep", "300")})
	wantCode(t, f.WriteProcess(t.Context(), ref(a), []byte("x")), wire.CodeClosed)
	a = f.keep(t, wire.ExecRequest{Argv: wire.Names("sleep", "300"), Stdin: true})
	if err := f.CloseProcessInput(t.Context(), ref(a)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, f.WriteProcess(t.Context(), ref(a), []byte("x")), wire.CodeClosed)
}

// A writer whose data nobody takes waits until its context ends, and leaves nothing behind.
func TestKeptProcessThatDoesNotRead(t *testing.T) {
	f := newGuest(t)
	a := f.keep(t, wire.ExecRequest{Argv: wire.Names("sleep", "300"), Stdin: true})
	time.Sleep(50 * time.Millisecond) // until its goroutines run
	before := runtime.NumGoroutine()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := f.WriteProcess(ctx, ref(a), make([]byte, 1<<20))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
	}
	eventually(t, "goroutines return to where they were", func() bool { return runtime.NumGoroutine() <= before+1 })
	if err := f.SignalProcess(t.Context(), ref(a), 15); err != nil {
		t.Fatal(err)
	}
	if _, exit := rest(t, a); exit.Signal != 15 {
		t.Errorf("%+v", exit)
	}
}

func TestKeptProcessTimeoutAndKill(t *testing.T) {
	f := newGuest(t)
	needCgroups(t, f)
	for _, timeout := range []bool{true, false} {
		file := filepath.Join(t.TempDir(), "ticks")
		req := sh("(setsid sh -c 'while :; do date >> " + file + "; sleep 0.02; done') & echo begun; sleep 300")
		if timeout {
			req.TimeoutMS = 400
		}
		a := f.keep(t, req)
		until(t, a, "begun\n")
		a.Close() // which must not matter
		if !timeout {
			eventually(t, "it ticks", func() bool { b, _ := os.ReadFile(file); return len(b) > 0 })
			if err := f.SignalProcess(t.Context(), ref(a), 9); err != nil {
				t.Fatal(err)
			}
		}
		_, exit := rest(t, f.attach(t, ref(a)))
		if exit.Code != 137 || exit.TimedOut != timeout || exit.OOM || exit.Background {
			t.Errorf("%+v", exit)
		}
		before, _ := os.ReadFile(file)
		time.Sleep(100 * time.Millisecond)
		if after, _ := os.ReadFile(file); !bytes.Equal(before, after) || len(before) == 0 {
			t.Errorf("a descendant lives on: %d, then %d bytes", len(before), len(after))
		}
	}
}

func TestKeptProcessMistakes(t *testing.T) {
	f := newGuest(t)
	plain := f.keep(t, wire.ExecRequest{Argv: wire.Names("sleep", "300"), Tag: "a"})
	for name, tc := range map[string]struct {
		req  wire.ExecRequest
		code wire.Code
	}{
		"limit":          {wire.ExecRequest{Argv: wire.Names("true"), StdoutLimit: 1}, wire.CodeBadRequest},
		"long tag":       {wire.ExecRequest{Argv: wire.Names("true"), Tag: strings.Repeat("x", 257)}, wire.CodeBadRequest},
		"empty terminal": {wire.ExecRequest{Argv: wire.Names("true"), TTY: &wire.TTY{Cols: 80}}, wire.CodeBadRequest},
		"taken tag":      {wire.ExecRequest{Argv: wire.Names("true"), Tag: "a"}, wire.CodeExists},
		"no program":     {wire.ExecRequest{Argv: wire.Names("no-such-binary")}, wire.CodeNotFound},
	} {
		_, err := f.StartProcess(t.Context(), tc.req)
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != tc.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := f.run(t.Context(), wire.ExecRequest{Argv: wire.Names("true"), Tag: "x"})
	wantCode(t, err, wire.CodeBadRequest)
	for name, tc := range map[string]struct {
		err  error
		code wire.Code
	}{
		"nobody":            {f.SignalProcess(t.Context(), wire.ProcessRef{}, 15), wire.CodeBadRequest},
		"unknown pid":       {f.SignalProcess(t.Context(), wire.ProcessRef{PID: 1}, 15), wire.CodeNotFound},
		"unknown tag":       {f.SignalProcess(t.Context(), wire.ProcessRef{Tag: "b"}, 15), wire.CodeNotFound},
		"signal 0":          {f.SignalProcess(t.Context(), ref(plain), 0), wire.CodeBadRequest},
		"signal 65":         {f.SignalProcess(t.Context(), ref(plain), 65), wire.CodeBadRequest},
		"resize of a pipe":  {f.ResizeProcess(t.Context(), ref(plain), wire.TTY{Cols: 1, Rows: 1}), wire.CodeBadRequest},
		"resize to nothing": {f.ResizeProcess(t.Context(), ref(plain), wire.TTY{Cols: 1}), wire.CodeBadRequest},
	} {
		if e, ok := errors.AsType[*wire.Error](tc.err); !ok || e.Code != tc.code {
			t.Errorf("%s: %v, want %s", name, tc.err, tc.code)
		}
	}
	// Of several with a tag it is the youngest; by number it is the one.
	young := f.keep(t, wire.ExecRequest{Argv: wire.Names("sleep", "300"), Tag: "a", TagShared: true})
	if a := f.attach(t, wire.ProcessRef{Tag: "a"}); a.Info.PID != young.Info.PID {
		t.Errorf("tag finds %+v", a.Info)
	}
	if a := f.attach(t, wire.ProcessRef{PID: plain.Info.PID, Tag: "other"}); a.Info.PID != plain.Info.PID {
		t.Errorf("pid finds %+v", a.Info)
	}
}

// A tag is free again when the last process that has it has ended, or none could be started.
func TestTagsOfKeptProcesses(t *testing.T) {
	f := newGuest(t)
	req := wire.ExecRequest{Argv: wire.Names("no-such-binary"), Tag: "a"}
	_, err := f.StartProcess(t.Context(), req)
	wantCode(t, err, wire.CodeNotFound)
	req.Argv, req.TagShared = wire.Names("sleep", "300"), true
	both := []*agent.Attachment{f.keep(t, req), f.keep(t, req)}
	req.TagShared = false
	for _, a := range both {
		_, err := f.StartProcess(t.Context(), req)
		wantCode(t, err, wire.CodeExists)
		if err = f.SignalProcess(t.Context(), ref(a), 9); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = a.Recv()
		}
	}
	f.keep(t, req)
}

// The memory of ended processes has a limit.
func TestKeptProcessesAreForgotten(t *testing.T) {
	f := newGuest(t)
	first := f.keep(t, wire.ExecRequest{Argv: wire.Names("true")})
	rest(t, first)
	for range 66 {
		rest(t, f.keep(t, wire.ExecRequest{Argv: wire.Names("true")}))
	}
	list, err := f.Processes(t.Context())
	if err != nil || len(list) != 64 {
		t.Errorf("%d are remembered, %v", len(list), err)
	}
	_, err = f.AttachProcess(t.Context(), ref(first))
	wantCode(t, err, wire.CodeNotFound)
	large := wire.ExecRequest{Argv: wire.Names("true", strings.Repeat("x", 120<<10))}
	for range 12 {
		rest(t, f.keep(t, large))
	}
	if list, err = f.Processes(t.Context()); err != nil || len(list) > 10 || len(list) == 0 {
		t.Errorf("%d large ones are remembered, %v", len(list), err)
	}
}

// In a child the connections of the source are gone, but its kept processes are all there: listed, with their input open, and
// with their terminals. So they are in the source.
func TestKeptProcessesInAChild(t *testing.T) {
	for _, branch := range []bool{false, true} {
		for _, child := range []bool{true, false} {
			t.Run(fmt.Sprintf("branch=%v child=%v", branch, child), func(t *testing.T) {
				f := newGuest(t)
				needCgroups(t, f)
				keptAcross(t, f, branch, child)
			})
		}
	}
}

func keptAcross(t *testing.T, f *fixture, branch, child bool) {
	ended := f.keep(t, sh("exit 4"))
	rest(t, ended)
	req := sh(`while read x; do echo "got $x"; done; exit 6`)
	req.Stdin, req.Tag = true, "reader"
	reader := f.keep(t, req)
	terminal := f.keep(t, wire.ExecRequest{Argv: wire.Names("sh"), Env: wire.Names("PS1=> "), TTY: &wire.TTY{Cols: 80, Rows: 24}})
	until(t, terminal, "> ")
	f.type_(t, reader, "one\n")
	until(t, reader, "one\n")

	var held *agent.Held
	if branch {
		held = f.branch(t)
	} else if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if child { // the restore breaks all connections
		reader.Close()
		terminal.Close()
	}
	var err error
	switch {
	case child && branch:
		held.Abandon()
		err = f.Refresh(t.Context(), identity(1))
	case child:
		err = f.Refresh(t.Context(), identity(1))
	case branch:
		_, err = held.Release()
	default:
		err = f.Resume(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.Processes(t.Context())
	if err != nil || len(list) != 3 || list[2].PID != ended.Info.PID || list[2].Exit.Code != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	if child {
		reader, terminal = f.attach(t, wire.ProcessRef{Tag: "reader"}), f.attach(t, ref(terminal))
	}
	f.type_(t, reader, "two\n")
	until(t, reader, "got two\n")
	if err := f.ResizeProcess(t.Context(), ref(terminal), wire.TTY{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	f.type_(t, terminal, "stty size\r")
	until(t, terminal, "30 100")
	if err := f.CloseProcessInput(t.Context(), ref(reader)); err != nil {
		t.Fatal(err)
	}
	if _, exit := rest(t, reader); exit.Code != 6 {
		t.Errorf("%+v", exit)
	}
	if err := f.SignalProcess(t.Context(), ref(terminal), 9); err != nil {
		t.Fatal(err)
	}
	if _, exit := rest(t, terminal); exit.Signal != 9 {
		t.Errorf("%+v", exit)
	}
}
