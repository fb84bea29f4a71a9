package sandbox

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// mute comes between a cell and daemons to come: they hear what it has, and from then on nothing until it
// is to speak.
func mute(t *testing.T, b *box, home string) (speak func()) {
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
	may := make(chan struct{})
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go mutter(c, real, may)
		}
	}()
	return sync.OnceFunc(func() { close(may) })
}

// mutter has a cell answer a daemon until it is asked for more than what it has, and then from when it may.
func mutter(daemon *net.UnixConn, real string, may <-chan struct{}) {
	var opening [wire.OpeningSize]byte
	if _, err := io.ReadFull(daemon, opening[:]); err != nil {
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
	if p, _ := wire.ParseOpening(opening); p != wire.Control {
		go io.Copy(daemon, c)
		io.Copy(c, daemon)
		return
	}
	from, to := wire.NewConn(daemon), wire.NewConn(c)
	go func() {
		for {
			m, err := to.Receive()
			if err != nil || from.Send(m) != nil {
				return
			}
			closeFiles(m.Files)
		}
	}()
	for {
		m, err := from.Receive()
		if err != nil {
			return
		}
		if m.Op != wire.OpHello && m.Op != wire.OpList {
			<-may
		}
		if to.Send(m) != nil {
			return
		}
		closeFiles(m.Files)
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// hurry has daemons that start wait for cells for a moment only.
func hurry(t *testing.T) {
	before := graceTime
	graceTime = 200 * time.Millisecond
	t.Cleanup(func() { graceTime = before })
}

// TestMuteCells: cells that do not answer in the middle of it keep no daemon from starting. Killed, they leave
// nothing behind; and when they answer they are taken over.
func TestMuteCells(t *testing.T) {
	hurry(t)
	m := openApart(t, true)
	bare(t, m, "x", "")
	boxes, speak := make([]*box, 4), make([]func(), 4)
	for i := range boxes {
		boxes[i] = forkBare(t, m, "x")
	}
	if err := m.store.Remove("x"); err != nil { // the cells are asked for it
		t.Fatal(err)
	}
	m = meanwhile(t, m, func() {
		for i, b := range boxes {
			speak[i] = mute(t, b, m.opts.Home)
		}
	})
	for i, b := range boxes {
		pid := b.machine.Cell().PID
		info, err := m.Sandbox(b.id)
		if err != nil || info.State != Running || info.Reason == "" || info.PID != pid {
			t.Errorf("it is %+v, %v", info, err)
		}
		if i == 0 {
			continue
		}
		if err := m.Kill(b.id); err != nil {
			t.Error(err)
		}
		wantCode(t, "who asks after that", second(m.Sandbox(b.id)), NotFound, reasonKilled)
	}
	for _, b := range boxes[1:] {
		pid, record := b.machine.Cell().PID, filepath.Join(m.opts.Home, "cells", b.machine.Cell().Name+".json")
		stays := func() bool { return syscall.Kill(pid, 0) == nil || second(os.Stat(record)) == nil }
		for end := time.Now().Add(time.Minute); stays(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("its process stays, or its record")
			}
		}
	}
	speak[0]()
	b := arrived(t, m, boxes[0].id)
	if info, err := m.Sandbox(b.id); err != nil || info.State != Running || info.Reason != "" {
		t.Errorf("the one that is taken over is %+v, %v", info, err)
	}
}

// arrived waits until a sandbox is taken over, and returns it.
func arrived(t *testing.T, m *Manager, id string) *box {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b := m.lookup(id)
		switch {
		case b == nil || time.Now().After(end):
			t.Fatalf("sandbox %s is not taken over", id)
		case b.arrival == nil:
			return b
		}
	}
}
