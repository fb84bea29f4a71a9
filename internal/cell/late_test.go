package cell

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/celltest"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
)

// TestSilentCellIsTakenOverLate: a cell that does not answer the next daemon is left alone, by the one
// after that, too; when it goes on, what lives in it does, and can be used.
func TestSilentCellIsTakenOverLate(t *testing.T) {
	dir := shortDir(t)
	l := newLab(t, dir, nil)
	s, _ := l.seed()
	v := l.fork(l.shared("x"), s, "runs")[0]
	if err := v.Start(); err != nil {
		t.Fatal(err)
	}
	l.counted(v)
	last := v.Counters().Instructions
	home := v.Cell()
	l.Host.Close(false)
	l.store.Close()
	celltest.Stop(t, home.PID)
	t.Cleanup(func() { syscall.Kill(home.PID, syscall.SIGCONT) })

	// One that ends before the cell goes on.
	l = newLab(t, dir, nil)
	c := l.silent(home)
	stands := c.Untold()
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- second(c.TakeOver(ctx)) }()
	if other := l.shared("x"); other == c {
		t.Error("it gets machines before it has told what it has")
	}
	for what, err := range map[string]error{
		"starting": stands.Start(), "opening": second(stands.Open(t.Context(), 1)), "dialing": second(stands.Dial(t.Context(), 1)),
	} {
		if !errors.Is(err, ErrSilent) {
			t.Errorf("%s what it is yet to tell of: %v", what, err)
		}
	}
	leave()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("who does not want it any more gets %v", err)
	}
	stands.Close()
	l.Host.Close(false)
	l.store.Close()

	l = newLab(t, dir, nil)
	c = l.silent(home)
	taken := make(chan *Found, 1)
	go func() {
		f, err := c.TakeOver(t.Context())
		if err != nil {
			t.Error(err)
		}
		taken <- f
	}()
	celltest.Continue(t, home.PID)
	f := <-taken
	if f == nil || len(f.VMs) != 1 || string(f.VMs[0].Note) != `"runs"` {
		t.Fatalf("it has %+v", f)
	}
	if l.shared("x") != c {
		t.Error("it is not for its key any more")
	}
	l.executed(f.VMs[0].VM, last+1)
	back, err := c.Snapshot(t.Context(), f.Sources[0], s.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	back.Release()
}

// silent returns a cell of an earlier daemon that Recover has connected to although it does not answer.
func (l *lab) silent(home *Cell) *Cell {
	l.t.Helper()
	cells, lost, err := l.Recover()
	if err != nil || len(lost) != 0 {
		l.t.Fatal(lost, err)
	}
	i := slices.IndexFunc(cells, func(c *Cell) bool { return c.Name == home.Name })
	if i < 0 || cells[i].Gone() != nil {
		l.t.Fatalf("it is not among %+v", cells)
	}
	if !home.proc.lives() {
		l.t.Fatal("its process has ended")
	}
	return cells[i]
}

// TestSilentCellEnds: what stands for machines of a cell ends with it, whether it is killed or does
// not make sense when it goes on.
func TestSilentCellEnds(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(t *testing.T, c *Cell)
		want string
	}{
		"killed":          {func(t *testing.T, c *Cell) { c.proc.kill() }, "process %d has ended"},
		"told to quit":    {func(t *testing.T, c *Cell) { c.Quit(); celltest.Continue(t, c.PID) }, "process %d has ended"},
		"of another name": {func(t *testing.T, c *Cell) { celltest.Continue(t, c.PID) }, "process %d was ended: it could not be taken over: greeting cell"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := shortDir(t)
			l := newLab(t, dir, nil)
			v := l.boot(machinetest.Count)
			l.counted(v)
			home := v.Cell()
			l.Host.Close(false)
			l.store.Close()
			celltest.Stop(t, home.PID)
			l = newLab(t, dir, nil)
			found := l.silent(home)
			if what == "of another name" {
				found.Name = "another"
			}
			stands := found.Untold()
			c.do(t, found)
			f, err := found.TakeOver(t.Context())
			want := fmt.Sprintf(c.want, home.PID)
			if err == nil { // it has told what it has before it quit
				err = awaitEnd(t, f.VMs[0].VM).Err
			}
			if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), want) {
				t.Errorf("taken over: %+v, %v; want %q", f, err, want)
			}
			if e := awaitEnd(t, stands); e.Err == nil || !strings.Contains(e.Err.Error(), want) {
				t.Errorf("what stands for a machine ended with %v", e.Err)
			}
			select {
			case <-home.proc.exited:
			case <-time.After(time.Minute):
				t.Error("its process goes on")
			}
		})
	}
}
