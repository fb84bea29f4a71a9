package jail

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// prey prepares what there is to attack: a sibling, and what the daemon has.
func prey(t *testing.T, j *Jailer) targets {
	t.Helper()
	sibling := lock(t, j, Spec{}, Profile{})
	dir := t.TempDir()
	var on targets
	on.Daemon, on.Sibling, on.SiblingSecret = os.Getpid(), sibling.PID, sibling.Secret
	on.Socket = listen(t, "unix", filepath.Join(dir, "socket"))
	on.Abstract = listen(t, "unix", "@forkd-jail-"+testName())
	on.TCP = listen(t, "tcp", "127.0.0.1:0")
	on.File = filepath.Join(dir, "file")
	if err := os.WriteFile(on.File, []byte("nobody in jail reads this"), 0o755); err != nil {
		t.Fatal(err)
	}
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, on.File, 0)
	if err == nil { // not every file system has handles
		on.Handle, on.HandleType = h.Bytes(), h.Type()
	}
	t.Cleanup(func() {
		if a, died := sibling.do("nothing", order{}); died || a.Error != "" {
			t.Errorf("the sibling has suffered: %v %v", died, a)
		}
	})
	return on
}

func listen(t *testing.T, network, address string) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("%s: somebody has got out", address)
			c.Close()
		}
	}()
	return l.Addr().String()
}

// TestBreakout: nothing of what a process might try to get out gets it anything.
func TestBreakout(t *testing.T) {
	j := newJailer(t)
	on := prey(t, j)
	p := lock(t, j, Spec{}, Profile{})
	for _, a := range attacks {
		if a.kills {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			p.t = t
			got, died := p.do(a.name, order{On: on})
			if died || got.Errno != a.want || got.Text != "" && got.Error == "" {
				t.Errorf("died: %v; it saw %q; error %q, want %v", died, got.Text, got.Error, a.want)
			}
		})
	}
	p.t = t
	p.must("work", order{})
	for _, a := range attacks {
		if !a.kills {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			p := lock(t, j, Spec{}, Profile{})
			got, died := p.do(a.name, order{On: on})
			if !died {
				t.Fatalf("it lives, and saw %q, error %q", got.Text, got.Error)
			}
			if !p.killedBySeccomp() {
				t.Errorf("it ended otherwise: %v", p.cmd.ProcessState)
			}
		})
	}
}

// TestWork: what a process has to do, it can do in jail.
func TestWork(t *testing.T) {
	p := lock(t, newJailer(t), Spec{}, Profile{})
	if got := p.must("work", order{}); got != "10000" {
		t.Errorf("it counted %s", got)
	}
}

// TestSocketsArePassed: sockets that a process gets work, connected ones and ones that
// listen.
func TestSocketsArePassed(t *testing.T) {
	p := lock(t, newJailer(t), Spec{}, Profile{})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := p.files.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			said <- err.Error()
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		c.Write([]byte("to the jail"))
		c.(*net.UnixConn).CloseWrite()
		b, err := io.ReadAll(c)
		said <- fmt.Sprintf("%s, %v", b, err)
	}()
	if got := p.must("serve", order{}); got != "to the jail" {
		t.Errorf("it heard %q", got)
	}
	if got := <-said; got != "to the jail, and back, <nil>" {
		t.Errorf("it answered %q", got)
	}
}

// TestFilesArePassed: a process in jail works on files that it gets, and hands over its own.
func TestFilesArePassed(t *testing.T) {
	p := lock(t, newJailer(t), Spec{}, Profile{})
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("from outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := p.files.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if got := p.must("receive", order{}); got != "from outside" {
		t.Errorf("it read %q", got)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != 8192 || string(b[4096:4107]) != "from inside" || string(b[100:106]) != "mapped" {
		t.Errorf("%d bytes, %q, %q", len(b), b[4096:4107], b[100:106])
	}
	answer, err := receiveFile(p.files)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	if text, err := io.ReadAll(io.NewSectionReader(answer, 0, 100)); err != nil || string(text) != "from outside" {
		t.Errorf("its file says %q, %v", text, err)
	}
}
