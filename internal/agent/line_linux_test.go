package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// lines makes connections as a machine does that is made of another one: first those are taken that the other one had.
type lines struct {
	f     *fixture
	spare map[uint32]net.Conn
	made  map[uint32]net.Conn
}

// lined returns a client whose lines to a guest are those of a parent, if there is one.
func (f *fixture) lined(parent *lines) (*agent.Client, *lines) {
	l := &lines{f: f, made: make(map[uint32]net.Conn)}
	if parent != nil {
		l.spare = parent.made
	}
	return f.newClient().Lines(l.dial), l
}

func (l *lines) dial(ctx context.Context, port uint32) (net.Conn, error) {
	if conn := l.spare[port]; conn != nil {
		delete(l.spare, port)
		return conn, nil
	}
	conn, err := l.f.dial(ctx, port)
	l.made[port] = conn
	return conn, err
}

// What a parent's client has connected serves a child's: for the refresh, and for evaluations.
func TestLines(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	info, _ := f.Runtime("python")
	parent, kept := f.lined(nil)
	parent.Adopt(info)
	if err := parent.Connect(t.Context(), "python"); err != nil {
		t.Fatal(err)
	}
	for generation := uint64(1); generation <= 2; generation++ {
		if _, err := parent.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(kept.made) != 2 {
			t.Fatalf("generation %d: %d lines are there", generation, len(kept.made))
		}
		child, own := f.lined(kept)
		child.Adopt(info)
		if err := child.Refresh(t.Context(), identity(generation)); err != nil {
			t.Fatal(err)
		}
		for _, code := range []string{"1 + 1", "2 + 2"} {
			if r, err := child.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: code}); err != nil || r.Error != nil {
				t.Fatalf("%v, %+v", err, r)
			}
		}
		if len(own.made) != 0 || len(kept.made) != 0 {
			t.Errorf("generation %d: the child has made %d connections, and left %d of its parent's", generation, len(own.made), len(kept.made))
		}
		f.mustRun(t, sh("true"))
		parent, kept = child, own
		if err := parent.Close(); err != nil { // what has carried a refresh or more is of no use to children
			t.Fatal(err)
		}
		if err := parent.Connect(t.Context(), "python"); err != nil {
			t.Fatal(err)
		}
	}
}

// A line that ends, or that something else comes on than a refresh, leaves the guest as it is.
func TestLineWithoutARefresh(t *testing.T) {
	f := newGuest(t)
	for name, use := range map[string]func(net.Conn) error{
		"ends": func(c net.Conn) error { return c.Close() },
		"a ping": func(c net.Conn) error {
			payload, err := wire.EncodeRequest(wire.OpPing, nil)
			if err != nil {
				return err
			}
			if err := wire.NewWriter(c).Frame(wire.TypeRequest, payload); err != nil {
				return err
			}
			kind, _, err := wire.NewReader(c).Next()
			if kind != wire.TypeOK && err == nil {
				err = errors.New("it was refused")
			}
			return err
		},
		"half a refresh": func(c net.Conn) error {
			payload, err := identity(1).AppendBinary(nil)
			if err != nil {
				return err
			}
			frame := wire.AppendFrame(nil, wire.TypeRefresh, payload)
			if _, err = c.Write(frame[:20]); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond) // so that it comes in two parts
			if _, err = c.Write(frame[20:]); err != nil {
				return err
			}
			if kind, _, err := wire.NewReader(c).Next(); err != nil || kind != wire.TypeOK {
				return errors.Join(err, errors.New("it was refused"))
			}
			return nil
		},
	} {
		parent, kept := f.lined(nil)
		if _, err := parent.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := use(kept.made[wire.AgentPort]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := f.Ping(t.Context()); err != nil || info.Quiesced != (name != "half a refresh") {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
		if err := parent.Resume(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.mustRun(t, sh("true"))
	}
}

// Without a child, the line ends when user code goes on.
func TestLineEndsWithAResume(t *testing.T) {
	f := newGuest(t)
	parent, kept := f.lined(nil)
	if _, err := parent.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	line := kept.made[wire.AgentPort]
	if err := f.Resume(t.Context()); err != nil { // another client's: the line is still open
		t.Fatal(err)
	}
	payload, err := identity(1).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.NewWriter(line).Frame(wire.TypeRefresh, payload); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(line); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Log(err) // a reset is an end, too
	}
	if info, err := f.Ping(t.Context()); err != nil || info.Generation != 0 {
		t.Errorf("a refresh came through a line that is over: %+v, %v", info, err)
	}
}

// A line that something is being evaluated on is none of a child's: it would hear the end of that.
func TestLineInUse(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	info, _ := f.Runtime("python")
	parent, kept := f.lined(nil)
	parent.Adopt(info)
	begun := filepath.Join(t.TempDir(), "begun")
	ended := make(chan error, 1)
	go func() {
		_, err := parent.Eval(t.Context(), agent.EvalRequest{Runtime: "python", Code: fmt.Sprintf("import time\nopen(%q, 'w').close()\nfor _ in range(200): time.sleep(.01)", begun)})
		ended <- err
	}()
	eventually(t, "the evaluation has begun", func() bool { _, err := os.Stat(begun); return err == nil })
	line := kept.made[info.Port]
	if _, err := parent.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := line.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the line is still there: %v", err)
	}
	if err := parent.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the evaluation was answered on it")
	}
}
