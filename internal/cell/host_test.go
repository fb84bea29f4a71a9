package cell

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// counted counts the cells that it starts. The first of them begin when all of these are asked for,
// the others when they may.
type counted struct {
	Launcher
	first int64
	n     atomic.Int64
	all   chan struct{}
	rest  chan struct{}
}

func (c *counted) Launch(name string, l *net.UnixListener, scratch *os.File) (*process, error) {
	begin := c.all
	switch n := c.n.Add(1); {
	case n == c.first:
		close(c.all)
	case n > c.first:
		begin = c.rest
	}
	<-begin
	return c.Launcher.Launch(name, l, scratch)
}

// TestSpareCells: however many cells are wanted at once, no more are started ahead than are to be kept.
func TestSpareCells(t *testing.T) {
	const wanted, spare = 8, 2
	cells := &counted{first: wanted, all: make(chan struct{}), rest: make(chan struct{})}
	l := newLab(t, shortDir(t), func(o *Options) {
		cells.Launcher = o.Launch
		o.Launch, o.Spare = cells, spare
	})
	var callers sync.WaitGroup
	for range wanted {
		callers.Go(func() {
			if _, err := l.Fresh(); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	close(cells.rest)
	l.work.Wait()
	if n := len(l.spare); n != spare {
		t.Errorf("%d cells are kept", n)
	}
	if n := cells.n.Load(); n != wanted+spare {
		t.Errorf("%d cells were started for %d", n, wanted)
	}
}
