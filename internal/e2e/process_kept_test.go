package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// start starts a process that lives on its own.
func (d *daemon) start(t *testing.T, id string, req client.ProcessRequest) *client.Attachment {
	t.Helper()
	a, err := d.StartProcess(limited(t, patience), id, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// type_ writes to a process.
func (d *daemon) type_(t *testing.T, id string, a *client.Attachment, text string) {
	t.Helper()
	if err := d.WriteProcess(limited(t, patience), id, client.ProcessRef{PID: a.Process.PID}, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// expect receives output until it has the text.
func expect(t *testing.T, a *client.Attachment, text string) {
	t.Helper()
	var all bytes.Buffer
	for !strings.Contains(all.String(), text) {
		out, err := a.Recv()
		if err != nil {
			t.Fatalf("waiting for %q: %v after %q", text, err, all.String())
		}
		all.Write(out.Data)
	}
}

// A terminal in a guest is one: programs see it and its size, keys are signals, and
// its end is that of the session.
func TestTerminal(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	a := d.start(t, id, client.ProcessRequest{
		Args: []string{"sh", "-i"}, Env: map[string]string{"PS1": "$ ", "TERM": "xterm"}, TTY: &client.TTY{Cols: 91, Rows: 17},
	})
	expect(t, a, "$ ")
	d.type_(t, id, a, "tty; stty size\n")
	expect(t, a, "/dev/pts/")
	expect(t, a, "17 91")
	ref := client.ProcessRef{PID: a.Process.PID}
	if err := d.ResizeProcess(limited(t, patience), id, ref, client.TTY{Cols: 120, Rows: 33}); err != nil {
		t.Fatal(err)
	}
	d.type_(t, id, a, "stty size\n")
	expect(t, a, "33 120")
	d.type_(t, id, a, "sh -c 'echo it runs; exec sleep 1000'\n")
	expect(t, a, "it runs\r\n") // itself: until then a key would reach the shell alone
	d.type_(t, id, a, "\x03")
	expect(t, a, "\n$ ")
	d.type_(t, id, a, "echo $((6*7))\nexit 9\n")
	expect(t, a, "42")
	if exit, err := a.Wait(nil, nil); err != nil || exit.ExitCode != 9 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// The children of a sandbox have the processes that it has, and each its own.
func TestChildrenHaveTheProcesses(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.fork(t, 1)[0]
	a := d.start(t, id, client.ProcessRequest{Args: []string{"sh", "-c", "while read line; do echo got $line; done; exit 4"}, Stdin: true, Tag: "reader"})
	d.type_(t, id, a, "one\n")
	expect(t, a, "got one\n")
	children := d.forkWith(t, client.ForkRequest{FromSandbox: id, N: client.Ptr(2)})
	branch := d.branch(t, id, client.BranchRequest{})
	all := append(d.forkTag(t, branch.Tag, 1), children...)
	for i, child := range all {
		list, err := d.Processes(ctx, child)
		if err != nil || len(list) != 1 || list[0].PID != a.Process.PID || list[0].Tag != "reader" || list[0].Exit != nil {
			t.Fatalf("%+v, %v", list, err)
		}
		b, err := d.AttachProcess(ctx, child, client.ProcessRef{Tag: "reader"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.SpawnProcess(ctx, child, client.ProcessRequest{Args: []string{"true"}, Tag: "reader"})
		wantCode(t, err, "already_exists", `"reader"`)
		word := fmt.Sprintf("child%d", i)
		d.type_(t, child, b, word+"\n")
		expect(t, b, "got "+word+"\n")
		if err := d.CloseProcessInput(ctx, child, client.ProcessRef{PID: a.Process.PID}); err != nil {
			t.Error(err)
		}
		if exit, err := b.Wait(nil, nil); err != nil || exit.ExitCode != 4 {
			t.Errorf("%+v, %v", exit, err)
		}
		b.Close()
	}
	d.type_(t, id, a, "two\n")
	if out, err := a.Recv(); err != nil || string(out.Data) != "got two\n" {
		t.Errorf("the source's own says %q, %v", out.Data, err)
	}
}

// Limits and ends of processes: a timeout kills all of them, a signal its group, and
// who comes late learns how it ended.
func TestEndsOfProcesses(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, Env: map[string]string{"A": "1", "B": "2"}})[0]
	for _, c := range []struct {
		what   string
		req    client.ProcessRequest
		signal string
		exit   client.ProcessExit
		says   string
	}{
		{"a plain one", client.ProcessRequest{Args: []string{"sh", "-c", "echo $A$B$PWD; exit 3"}, Env: map[string]string{"B": "x"}, Cwd: "/tmp"}, "",
			client.ProcessExit{ExitCode: 3}, "1x/tmp\n"},
		{"one over its time", client.ProcessRequest{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000"}, TimeoutSecs: client.Ptr(0.2)}, "",
			client.ProcessExit{ExitCode: 137, Signal: client.Ptr("SIGKILL"), TimedOut: true}, ""},
		{"one that is interrupted", client.ProcessRequest{Args: []string{"sleep", "1000"}}, "INT",
			client.ProcessExit{ExitCode: 130, Signal: client.Ptr("SIGINT")}, ""},
		{"one that handles its signal", client.ProcessRequest{Args: []string{"sh", "-c", "trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.01; done"}}, "15",
			client.ProcessExit{ExitCode: 7}, "up\ncaught\n"},
	} {
		a := d.start(t, id, c.req)
		var out bytes.Buffer
		if strings.HasPrefix(c.says, "up") {
			for out.String() != "up\n" {
				o, err := a.Recv()
				if err != nil {
					t.Fatal(err)
				}
				out.Write(o.Data)
			}
		}
		if c.signal != "" {
			if err := d.SignalProcess(ctx, id, client.ProcessRef{PID: a.Process.PID}, c.signal); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		exit, err := a.Wait(&out, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		late, err := d.AttachProcess(ctx, id, client.ProcessRef{PID: a.Process.PID})
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		again, err := late.Wait(nil, nil)
		late.Close()
		for _, got := range []*client.ProcessExit{exit, again} {
			if err != nil || got.ExitCode != c.exit.ExitCode || deref(got.Signal) != deref(c.exit.Signal) || got.TimedOut != c.exit.TimedOut || out.String() != c.says {
				t.Errorf("%s: %+v, %v, said %q", c.what, got, err, out.String())
			}
		}
	}
	if left := d.sh(t, id, "ps -eo args= 2>/dev/null | grep -c '^sleep 1000' || true"); strings.TrimSpace(left) != "0" {
		t.Errorf("%s of them are left", strings.TrimSpace(left))
	}
	_, err := d.StartProcess(ctx, id, client.ProcessRequest{Args: []string{"no-such-program"}})
	wantCode(t, err, "not_found", "no-such-program")
	_, err = d.AttachProcess(ctx, id, client.ProcessRef{PID: 99999})
	wantCode(t, err, "not_found", "")
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Who listens slowly holds the process up and loses nothing; who leaves does not end it.
func TestSlowListener(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	const lines = 200_000
	ctx, leave := context.WithCancel(limited(t, patience))
	a, err := d.StartProcess(ctx, id, client.ProcessRequest{Args: []string{"sh", "-c", fmt.Sprintf("seq %d; sleep 0.1; echo end", lines)}, Tag: "seq"})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	hash := func(r io.Writer) {
		for i := 1; i <= lines; i++ {
			fmt.Fprintln(r, i)
		}
		fmt.Fprintln(r, "end")
	}
	var want, got bytes.Buffer
	hash(&want)
	if exit, err := a.Wait(&got, nil); err != nil || exit.ExitCode != 0 || !bytes.Equal(want.Bytes(), got.Bytes()) {
		t.Errorf("%d of %d bytes, %+v, %v", got.Len(), want.Len(), exit, err)
	}
	leave()

	ctx, leave = context.WithCancel(limited(t, patience))
	b, err := d.StartProcess(ctx, id, client.ProcessRequest{Args: []string{"sh", "-c", "seq 1000000; echo done > /root/done; exit 6"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(); err != nil {
		t.Fatal(err)
	}
	leave()
	b.Close()
	c, err := d.AttachProcess(limited(t, patience), id, client.ProcessRef{PID: b.Process.PID})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if exit, err := c.Wait(nil, nil); err != nil || exit.ExitCode != 6 {
		t.Errorf("%+v, %v", exit, err)
	}
	d.sh(t, id, "test -e /root/done")
}

// Use of what is paused resumes it, if that is wanted: by a process, too.
func TestAutoResumeByAProcess(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, AutoResume: true, TimeoutSecs: client.Ptr(3600.0)})[0]
	a := d.start(t, id, client.ProcessRequest{Args: []string{"cat"}, Stdin: true, Tag: "cat"})
	d.pause(t, id)
	if _, err := a.Recv(); !client.IsCode(err, "paused") {
		t.Errorf("the listener gets %v", err)
	}
	if err := d.WriteProcess(ctx, id, client.ProcessRef{Tag: "cat"}, []byte("x")); err != nil {
		t.Fatal(err)
	}
	info, err := d.Sandbox(ctx, id)
	if err != nil || info.State != "running" || info.ExpiresAt == nil {
		t.Errorf("%+v, %v", info, err)
	}
	var e *client.Error
	if _, err := d.StartProcess(ctx, "sb000000000000", client.ProcessRequest{Args: []string{"true"}}); !errors.As(err, &e) || e.Code != "not_found" {
		t.Errorf("in nothing: %v", err)
	}
}
