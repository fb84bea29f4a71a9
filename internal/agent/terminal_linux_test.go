package agent_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func TestTerminal(t *testing.T) {
	f := newGuest(t)
	a := f.keep(t, wire.ExecRequest{Argv: wire.Names("sh"), Env: wire.Names("PS1=> ", "TERM=dumb"), TTY: &wire.TTY{Cols: 80, Rows: 24}})
	if a.Info.TTY == nil {
		t.Errorf("described as %+v", a.Info)
	}
	until(t, a, "> ")
	f.type_(t, a, "stty size; echo $TERM; tty; echo oops >&2\r")
	if out := until(t, a, "oops\r\n> "); !strings.Contains(out, "24 80\r\n") || !strings.Contains(out, "dumb") || !strings.Contains(out, "/pts/") {
		t.Errorf("%q", out)
	}
	// Ctrl-C and Ctrl-D bring the prompt back. Programs say when they have begun, because the echo comes ahead of that.
	f.type_(t, a, `sh -c 'echo "be"gun; exec sleep 100'`+"\r")
	until(t, a, "begun\r\n")
	f.type_(t, a, "\x03")
	until(t, a, "> ")
	f.type_(t, a, "echo code=$?.\r")
	if out := until(t, a, ".\r\n> "); !strings.Contains(out, "code=130.") {
		t.Errorf("after Ctrl-C: %q", out)
	}
	f.type_(t, a, `sh -c 'echo "be"gun; exec cat'`+"\r")
	until(t, a, "begun\r\n")
	f.type_(t, a, "line\r")
	until(t, a, "line\r\nline\r\n")
	f.type_(t, a, "\x04")
	until(t, a, "> ")
	// The program in the foreground hears of a new size.
	f.type_(t, a, `sh -c 'trap "stty size" WINCH; echo "read"y; while :; do sleep 0.05; done'`+"\r")
	until(t, a, "ready")
	if err := f.ResizeProcess(t.Context(), ref(a), wire.TTY{Cols: 132, Rows: 43}); err != nil {
		t.Fatal(err)
	}
	until(t, a, "43 132")
	if err := f.ResizeProcess(t.Context(), ref(a), wire.TTY{Cols: 9999, Rows: 65535}); err != nil {
		t.Error(err)
	}
	until(t, a, "65535 9999")
	if list, err := f.Processes(t.Context()); err != nil || list[0].TTY == nil || list[0].TTY.Cols != 9999 {
		t.Errorf("%+v, %v", list, err)
	}
	wantCode(t, f.CloseProcessInput(t.Context(), ref(a)), wire.CodeBadRequest)
	f.type_(t, a, "\x03")
	until(t, a, "> ")
	f.type_(t, a, "exit 5\r")
	if _, exit := rest(t, a); exit.Code != 5 {
		t.Errorf("%+v", exit)
	}
}

// A terminal is hung up when its process ends, so that nothing in it lives on by mistake; nohup is for what should.
func TestTerminalIsHungUp(t *testing.T) {
	f := newGuest(t)
	a := f.keep(t, wire.ExecRequest{Argv: wire.Names("sh", "-c", "sleep 300 & echo pid=$!.; trap '' HUP; exit 0"), TTY: &wire.TTY{Cols: 80, Rows: 24}})
	out, exit := rest(t, a)
	if exit.Code != 0 {
		t.Errorf("%q, %+v", out, exit)
	}
	var pid int
	if _, err := fmt.Sscanf(out, "pid=%d.", &pid); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	eventually(t, "the program in the background has ended", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
}

// A terminal belongs to the user of its process.
func TestTerminalOfAUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to run commands as other users")
	}
	f := newGuest(t)
	a := f.keep(t, wire.ExecRequest{Argv: wire.Names("sh", "-c", "echo works > $(tty); stat -c %U $(tty)"), User: "daemon", Cwd: "/", TTY: &wire.TTY{Cols: 80, Rows: 24}})
	if out, exit := rest(t, a); out != "works\r\ndaemon\r\n" {
		t.Errorf("%q, %+v", out, exit)
	}
}
