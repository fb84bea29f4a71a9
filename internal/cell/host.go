package cell

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/page"
)

// Options are what a Host needs.
type Options struct {
	// Dir is for records, sockets and the pages of scratch disks; it is made. One process
	// at a time may have it.
	Dir string
	// Launch starts cells.
	Launch Launcher
	// Each tells that a cell is for one machine.
	Each bool
	// Spare is how many empty cells are kept ready.
	Spare int
	// Patience is how long a cell stays in which nothing lives.
	Patience time.Duration
	// OpenLayer opens a layer that has been written down.
	OpenLayer func(page.Digest) (*page.Layer, error)
	Log       *slog.Logger
}

// Launcher starts the process of a cell, which serves the listener and keeps the pages
// of scratch disks in a file; both stay the caller's.
type Launcher interface {
	Launch(name string, l *net.UnixListener, scratch *os.File) (*process, error)
	// Recover takes over processes of an earlier daemon. What is left of others it ends.
	Recover(ctx context.Context, known []*jail.Process) error
	// Confines tells whether the processes are in jail.
	Confines() bool
	// Close gives up what is for all processes, once there are none.
	Close()
}

// Host is the cells of a daemon.
type Host struct {
	opts Options
	gaps sync.Once // they are logged

	mu       sync.Mutex
	cells    map[string]*Cell   // by name; guarded by mu
	keyed    map[string][]*Cell // those that are for what has a key, oldest first; guarded by mu
	spare    []*Cell            // those that are for nothing yet; guarded by mu
	starting int                // how many will be spare; guarded by mu
	making   map[string]*making // those on their way; guarded by mu
	closed   bool               // guarded by mu
	work     sync.WaitGroup     // spare cells that are being started; added to under mu
}

// making is a cell on its way.
type making struct {
	done chan struct{}
	err  error // written before done is closed
}

// NewHost returns a host without cells. Those of an earlier daemon it takes over with
// Recover.
func NewHost(opts Options) (*Host, error) {
	if err := checkDir(opts.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, err
	}
	return &Host{opts: opts, cells: make(map[string]*Cell), keyed: make(map[string][]*Cell), making: make(map[string]*making)}, nil
}

func (h *Host) patience() time.Duration {
	if h.opts.Each {
		return 0
	}
	return h.opts.Patience
}

// Shared returns the cell that is for everything with a key, and starts it if need be: also if the one
// that there is does not answer. The caller forks something in it: until then it does not count as idle.
// On a host where each machine has a cell of its own it is always a fresh one.
func (h *Host) Shared(ctx context.Context, key string) (*Cell, error) {
	if h.opts.Each {
		return h.Fresh()
	}
	const tries = 3 // one that was started may have ended again
	for range tries {
		h.mu.Lock()
		if c := h.answersLocked(key); c != nil {
			c.wake() // before it is retired
			h.mu.Unlock()
			return c, nil
		}
		m := h.making[key]
		if m == nil {
			m = &making{done: make(chan struct{})}
			h.making[key] = m
			go h.makeKeyed(key, m)
		}
		h.mu.Unlock()
		select {
		case <-m.done:
			if m.err != nil {
				return nil, m.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, errors.New("cells end as soon as they are started")
}

// answersLocked returns the first cell for a key of which nobody knows that it does not answer; nil for
// none. The caller holds h.mu.
func (h *Host) answersLocked(key string) *Cell {
	if i := slices.IndexFunc(h.keyed[key], func(c *Cell) bool { return !c.Silent() }); i >= 0 {
		return h.keyed[key][i]
	}
	return nil
}

func (h *Host) makeKeyed(key string, m *making) {
	c, err := h.Fresh()
	if err == nil {
		if err = h.assign(c, key); err != nil {
			c.Quit()
		} else {
			c.rest() // all who have asked for it may have left
		}
	}
	h.mu.Lock()
	m.err = err
	delete(h.making, key)
	h.mu.Unlock()
	close(m.done)
}

// assign makes a cell the one for a key. It is written down for a later daemon.
func (h *Host) assign(c *Cell, key string) error {
	if err := h.write(record{recordVersion, c.Name, wire.Version, key, c.proc.identity, c.proc.inmate, c.seal}); err != nil {
		return fmt.Errorf("noting what cell %s is for: %w", c.Name, err)
	}
	return h.enter(c, key)
}

// Fresh returns a cell in which nothing lives.
func (h *Host) Fresh() (*Cell, error) {
	h.mu.Lock()
	if n := len(h.spare); n > 0 {
		c := h.spare[n-1]
		h.spare = h.spare[:n-1]
		h.mu.Unlock()
		h.Prepare()
		return c, nil
	}
	h.mu.Unlock()
	c, err := h.start()
	if err == nil {
		h.Prepare()
	}
	return c, err
}

// Prepare has spare cells started, beside what else goes on, as many as there are to be.
func (h *Host) Prepare() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ; !h.closed && len(h.spare)+h.starting < h.opts.Spare; h.starting++ {
		h.work.Go(h.startSpare)
	}
}

// startSpare starts a cell that is for nothing yet.
func (h *Host) startSpare() {
	c, err := h.start()
	if err != nil {
		h.opts.Log.Warn("starting a spare cell", "error", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starting--; err == nil {
		h.spare = append(h.spare, c) // Close waits for it
	}
}

// start starts a cell.
func (h *Host) start() (*Cell, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return nil, errors.New("no cells are started any more")
	}
	var id [4]byte
	rand.Read(id[:])
	name := fmt.Sprintf("%x", id)
	c, err := h.launch(name)
	if err != nil {
		h.erase(name)
		return nil, fmt.Errorf("starting a cell: %w", err)
	}
	return c, nil
}

func (h *Host) launch(name string) (*Cell, error) {
	socket := h.path(name, socketSuffix)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	scratch, err := unnamed(h.opts.Dir)
	if err != nil {
		return nil, err
	}
	defer scratch.Close()
	p, err := h.opts.Launch.Launch(name, l, scratch)
	if err != nil {
		return nil, err
	}
	seal := newSeal()
	if err := h.write(record{recordVersion, name, wire.Version, "", p.identity, p.inmate, seal}); err != nil {
		return nil, errors.Join(err, p.end())
	}
	c, err := connect(h, name, socket, p)
	if err == nil {
		if err = c.greet(context.Background(), AnswerTime); err != nil {
			c.conn.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.end())
	}
	c.seal = seal
	if len(c.Jail) > 0 {
		h.gaps.Do(func() { h.opts.Log.Info("walls that cells lack on this host", "walls", c.Jail) })
	}
	return c, h.enter(c, "")
}

// enter makes a cell known, and the one for a key unless that is empty.
func (h *Host) enter(c *Cell, key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.dead() { // and may have been forgotten already
		return c.lost()
	}
	h.cells[c.Name] = c
	if key != "" {
		h.keyed[key] = append(h.keyed[key], c)
	}
	return nil
}

// withdrawLocked has a cell be the one for nothing any more. The caller holds h.mu.
func (h *Host) withdrawLocked(c *Cell) {
	for key, cells := range h.keyed {
		if cells = slices.DeleteFunc(cells, func(k *Cell) bool { return k == c }); len(cells) > 0 {
			h.keyed[key] = cells
		} else {
			delete(h.keyed, key)
		}
	}
}

// unnamed returns a file that has no name any more.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "pages-*")
	if err != nil {
		return nil, fmt.Errorf("making a file for scratch disks: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("making a file for scratch disks: %w", err)
	}
	return f, nil
}

// Cells returns the cells, in order of their names.
func (h *Host) Cells() []*Cell {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*Cell, 0, len(h.cells))
	for _, c := range h.cells {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *Cell) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// forget drops a cell that is gone.
func (h *Host) forget(c *Cell) {
	h.mu.Lock()
	delete(h.cells, c.Name)
	h.spare = slices.DeleteFunc(h.spare, func(s *Cell) bool { return s == c })
	h.withdrawLocked(c)
	h.mu.Unlock()
	if err := c.proc.end(); err != nil {
		h.opts.Log.Warn("ending a cell that does not answer", "cell", c.Name, "error", err)
	}
	h.erase(c.Name)
}

// retire ends a cell in which nothing lives.
func (h *Host) retire(c *Cell) {
	h.mu.Lock()
	c.mu.Lock()
	empty := c.emptyLocked() && c.idle != nil
	c.mu.Unlock()
	if empty {
		h.withdrawLocked(c)
	}
	h.mu.Unlock()
	if empty {
		c.Quit()
	}
}

// Close lets go of all cells. With quit they end, and Close returns when they have;
// otherwise they go on for a later daemon.
func (h *Host) Close(quit bool) {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.work.Wait()
	h.mu.Lock()
	spare := h.spare
	h.spare = nil
	h.mu.Unlock()
	cells := h.Cells()
	for _, c := range cells {
		if quit || slices.Contains(spare, c) || c.quitting() {
			c.Quit()
		} else {
			go c.leave()
		}
	}
	if late := ends(cells, endTime); len(late) > 0 {
		for _, c := range late {
			if c.quitting() {
				c.End(errStubborn)
			}
		}
		for _, c := range ends(late, killTime) {
			h.opts.Log.Warn("a cell does not end", "cell", c.Name)
		}
	}
	if quit {
		h.opts.Launch.Close()
	}
}

// killTime is how long the host may take to be rid of a process that it has killed.
const killTime = 10 * time.Second

// ends waits until cells are gone, and returns those that are not in time.
func ends(cells []*Cell, within time.Duration) (late []*Cell) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for _, c := range cells {
		select {
		case <-c.gone:
		case <-ctx.Done():
			late = append(late, c)
		}
	}
	return late
}

func (c *Cell) quitting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quits
}

// checkDir refuses a directory whose sockets nobody can connect to.
func checkDir(dir string) error {
	const longest = 107 // unix(7), without the zero at the end
	if n := len(filepath.Join(dir, "00000000"+socketSuffix)); n > longest {
		return fmt.Errorf("sockets in %s would have names of %d bytes, more than the %d that are possible", dir, n, longest)
	}
	return nil
}
