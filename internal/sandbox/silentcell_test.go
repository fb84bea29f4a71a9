package sandbox

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// mute comes between a cell and daemons to come: they hear what it has, and from then on nothing.
func mute(t *testing.T, b *box, home string) {
	t.Helper()
	socket := filepath.Join(home, "cells", b.machine.Cell().Name+".sock")
	real := strings.TrimSuffix(socket, ".sock") + ".real"
	if err := os.Rename(socket, real); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go mutter(c, real)
		}
	}()
}

// mutter has a cell answer a daemon until it is asked for more than what it has.
func mutter(daemon *net.UnixConn, real string) {
	var opening [wire.OpeningSize]byte
	if _, err := io.ReadFull(daemon, opening[:]); err != nil {
		return
	}
	if p, _ := wire.ParseOpening(opening); p != wire.Control {
		return
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: real})
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := c.Write(opening[:]); err != nil {
		return
	}
	from, to := wire.NewConn(daemon), wire.NewConn(c)
	for {
		m, err := from.Receive()
		if err != nil {
			return
		}
		if m.Op != wire.OpHello && m.Op != wire.OpList {
			continue
		}
		if err = to.Send(m); err == nil {
			m, err = to.Receive()
		}
		if err != nil || from.Send(m) != nil {
			return
		}
	}
}

// TestMuteCells: cells that do not answer keep no daemon from starting, and nothing of them stays but
// the reason why what lived in them is lost.
func TestMuteCells(t *testing.T) {
	before := recoverTime
	recoverTime = 200 * time.Millisecond
	defer func() { recoverTime = before }()
	m := openApart(t, true)
	bare(t, m, "x", "")
	boxes := make([]*box, 4)
	for i := range boxes {
		boxes[i] = forkBare(t, m, "x")
	}
	if err := m.store.Remove("x"); err != nil { // the cells are asked for it
		t.Fatal(err)
	}
	m = meanwhile(t, m, func() {
		for _, b := range boxes {
			mute(t, b, m.opts.Home)
		}
	})
	for _, b := range boxes {
		pid := b.machine.Cell().PID
		want := fmt.Sprintf("process %d was ended: %s", pid, errNotTaken)
		info, err := m.Sandbox(b.id)
		if err != nil || info.State != Crashed || !strings.Contains(info.Reason, want) {
			t.Errorf("it is %+v, %v; want %q", info, err, want)
		}
		record := filepath.Join(m.opts.Home, "cells", b.machine.Cell().Name+".json")
		stays := func() bool { return syscall.Kill(pid, 0) == nil || second(os.Stat(record)) == nil }
		for end := time.Now().Add(time.Minute); stays(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("its process stays, or its record")
			}
		}
	}
}
