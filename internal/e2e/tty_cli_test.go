package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a terminal of this machine.
func openTerminal(t *testing.T, cols, rows uint16) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no terminals to test with: %v", err)
	}
	t.Cleanup(func() { ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	setSize(t, ours, cols, rows)
	return ours, theirs
}

func setSize(t *testing.T, terminal *os.File, cols, rows uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
		t.Fatal(err)
	}
}

// typist is somebody in front of a terminal in which forkd runs.
type typist struct {
	t    *testing.T
	term *os.File
	seen bytes.Buffer
	done chan error
}

func (d *daemon) typist(t *testing.T, cols, rows uint16, args ...string) *typist {
	t.Helper()
	ours, theirs := openTerminal(t, cols, rows)
	cmd := forkd(d.home, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() { cmd.Process.Kill() })
	y := &typist{t: t, term: ours, done: make(chan error, 1)}
	go func() { y.done <- cmd.Wait() }()
	return y
}

func (y *typist) types(keys string) {
	y.t.Helper()
	if _, err := y.term.WriteString(keys); err != nil {
		y.t.Fatal(err)
	}
}

// sees waits until the screen has something new that matches.
func (y *typist) sees(pattern string) string {
	y.t.Helper()
	want := regexp.MustCompile(pattern)
	buf := make([]byte, 4096)
	y.term.SetReadDeadline(time.Now().Add(patience))
	for {
		if at := want.FindIndex(y.seen.Bytes()); at != nil {
			return string(bytes.Clone(y.seen.Next(at[1])[at[0]:]))
		}
		n, err := y.term.Read(buf)
		y.seen.Write(buf[:n])
		if err != nil {
			if at := want.FindIndex(y.seen.Bytes()); at != nil {
				return ""
			}
			y.t.Fatalf("waiting for %q: %v; the screen has %q", pattern, err, y.seen.String())
		}
	}
}

// A terminal here is the screen and the keyboard of one in a sandbox: keys go there
// one by one, also those that are signals, its size follows, and it can be left and
// come back to.
func TestTerminalOfACommandLine(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	y := d.typist(t, 77, 11, "exec", "-c", id, "-t", "--name", "shell", "-e", "PS1=% ", "sh", "-i")
	y.sees("% ")
	y.types("stty size\r")
	y.sees(`11 77\r\n`)
	setSize(t, y.term, 100, 40)
	for range 50 { // the change travels on its own
		y.types("stty size\r")
		if y.sees(`\d+ \d+\r\n`) == "40 100\r\n" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	y.types("sh -c 'echo it runs; exec sleep 1000'\r")
	y.sees(`it runs\r\n`) // itself: until then a key would reach the shell alone
	y.types("\x03")
	y.sees("% ")
	y.types("x=kept; echo $((6*7))\r")
	y.sees("42")
	y.types("\x1d")
	y.sees("left process [0-9]+, which goes on")
	if err := <-y.done; err != nil {
		t.Errorf("leaving: %v", err)
	}
	z := d.typist(t, 77, 11, "attach", "-c", id, "shell")
	z.types("echo still $x; exit 5\r")
	z.sees("still kept")
	if err := <-z.done; err == nil || !strings.Contains(err.Error(), "exit status 5") {
		t.Errorf("the shell's end: %v", err)
	}
	// Whose terminal goes away is hung up.
	h := d.typist(t, 77, 11, "exec", "-c", id, "-t", "--name", "hung", "sh", "-i")
	h.sees("# ")
	h.term.Close()
	<-h.done
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		list, err := d.Processes(limited(t, patience), id)
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for _, p := range list {
			if p.Exit == nil {
				running++
			}
		}
		if running == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", list)
		}
	}
}

// A port here leads to one in a sandbox. What breaks there breaks here, and why is told once.
func TestPortForward(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.server(t, id, `
import socket
s = socket.create_server(("127.0.0.1", 9000))
import struct
kept = []
while True:
    c, _ = s.accept()
    line = c.recv(100)
    c.sendall(line.upper())
    if line == b"break": c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if line == b"keep": kept.append(c)
    else: c.close()
`, 9000)
	cmd := forkd(d.home, "port-forward", id, "0:9000", "0:9001")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var addr, closed string
	if _, err := fmt.Fscanf(out, "%s -> 9000\n%s -> 9001\n", &addr, &closed); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := ask(t, addr, "hello"); got != "HELLO" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := ask(t, addr, "break"); !strings.HasPrefix("BREAK", got) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that is reset says %q, %v", got, err)
		}
		if got, err := ask(t, closed, "hello"); got != "" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a closed port says %q, %v", got, err)
		}
	}
	kept, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	kept.SetDeadline(time.Now().Add(patience))
	io.WriteString(kept, "keep")
	if _, err := io.ReadFull(kept, make([]byte, len("KEEP"))); err != nil {
		t.Fatal(err)
	}
	if err := d.Kill(limited(t, patience), id); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to a sandbox that was killed ends with %v", err)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 1" || !strings.Contains(said.String(), "any more: it was killed") {
		t.Errorf("after that it ends with %v, and says %q", err, said.String())
	}
	for _, once := range []string{"broke a connection", "nothing listens on port 9001", "9001"} {
		if strings.Count(said.String(), once) != 1 {
			t.Errorf("%q is not told once: %q", once, said.String())
		}
	}
}

// ask sends a line to an address and returns all that comes back, and how that ends.
func ask(t *testing.T, addr, line string) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, line)
	got, err := io.ReadAll(conn)
	return string(got), err
}
