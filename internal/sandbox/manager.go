package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/host"
	"github.com/forkd-dev/forkd/internal/journal"
	"github.com/forkd-dev/forkd/internal/records"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Limits of a Manager.
const (
	MaxFork  = 1000  // children of one request
	maxBoxes = 10000 // sandboxes that run at once
	maxEnded = 1000  // sandboxes that ended by themselves and are still listed
)

// Options are what a Manager needs from its host.
type Options struct {
	// Home is the directory that holds images and snapshots; it is created.
	Home string
	// Agent returns the guest's agent, an ELF executable for an ISA.
	Agent func(engine.ISA) ([]byte, error)
	// Engine is what the machines in cells run on.
	Engine Engine
	// Cells starts the processes in which machines live.
	Cells cell.Launcher
	// Child is what a child takes of the host at least; by default what it does on an
	// engine whose machines share a process.
	Child   Cost
	Host    Host // default: the host of this process
	Log     *slog.Logger
	Version string
}

// Engine describes an engine; see engine.Engine.
type Engine struct {
	Name     string
	ISA      engine.ISA
	Features []string
	// Each tells that each machine has a cell of its own; otherwise those that have a
	// snapshot's first layer in common share one, and what is known about its pages.
	Each bool
}

// Cells that are kept ready: one of an engine whose cells are shared, and some more
// where each machine needs one.
const (
	spareShared = 1
	spareEach   = 2
)

// cellPatience is how long a cell stays in which nothing lives any more, with what it
// knows about a snapshot.
const cellPatience = 15 * time.Minute

// Manager owns the snapshots under one home and the sandboxes of this process.
type Manager struct {
	opts  Options
	lock  *os.File
	store *snapshot.Store
	cells *cell.Host

	building    keyedLock // one creation per tag at a time
	spaceTurns  keyedLock // one operation per workspace at a time
	pausedTurns keyedLock // one change per sandbox at a time of whether it is there; see turn
	tags        tagLocks  // what is being made stands on these
	spaces      *records.Dir[spaceRecord]
	paused      *records.Dir[pausedRecord]
	writers     *writers
	notes       notes // for cells
	journal     *journal.Journal
	arrivals    arrivals     // set once, before there are requests
	settling    sync.Mutex   // held while a sandbox that was found is registered
	images      sync.RWMutex // held for reading while an image is in use

	turns     chan struct{} // what makes a machine in a cell of its own has one; as many as there are CPUs
	admission admission
	spent     averages // what children had when they ended
	codes     codes    // that were compiled for many children

	mu       sync.Mutex
	warm     map[string]*snapshot.Snapshot // opened snapshots by tag; guarded by mu
	boxes    map[string]*box               // guarded by mu
	ended    []*box                        // by themselves, oldest first; guarded by mu
	failures []failure                     // branches that could not be written, oldest first; guarded by mu
	closed   bool                          // guarded by mu
}

// Open opens a home. A home that another process holds is an InUse error that
// names the process.
func Open(ctx context.Context, opts Options) (*Manager, error) {
	if err := os.MkdirAll(opts.Home, 0o700); err != nil {
		return nil, wrap(err, "creating %s", opts.Home)
	}
	lock, err := lockHome(opts.Home)
	if err != nil {
		return nil, err
	}
	opts.Child = cmp.Or(opts.Child, usualCost)
	if opts.Host == nil {
		opts.Host = host.New()
	}
	m := &Manager{
		opts:    opts,
		lock:    lock,
		writers: newWriters(),
		warm:    make(map[string]*snapshot.Snapshot),
		boxes:   make(map[string]*box),

		turns:     make(chan struct{}, runtime.NumCPU()),
		admission: admission{host: opts.Host},
	}
	if m.store, err = snapshot.OpenStore(opts.Home); err == nil {
		m.cells, err = m.newCells()
	}
	if err == nil {
		m.spaces, err = records.Open[spaceRecord](filepath.Join(opts.Home, "workspaces"))
	}
	if err == nil {
		m.paused, err = records.Open[pausedRecord](filepath.Join(opts.Home, "sandboxes"))
	}
	if err != nil {
		lock.Close()
		return nil, wrap(err, "opening %s", opts.Home)
	}
	m.journal = journal.Read(filepath.Join(opts.Home, "journal"), maxBoxes+maxEnded, opts.Log)
	if err := m.recover(ctx); err != nil {
		return nil, errors.Join(wrap(err, "taking over what an earlier daemon has left"), m.Abandon())
	}
	m.journal.Open(m.deaf)
	m.cells.Prepare()
	return m, nil
}

func (m *Manager) newCells() (*cell.Host, error) {
	opts := cell.Options{
		Dir: filepath.Join(m.opts.Home, "cells"), Launch: m.opts.Cells,
		Each: m.opts.Engine.Each, Spare: spareShared, Patience: cellPatience, OpenLayer: m.store.OpenLayer, Log: m.opts.Log,
	}
	if opts.Each {
		opts.Spare = spareEach
	}
	return cell.NewHost(opts)
}

// lockHome takes the home's lock for the life of this process and leaves the
// process id in it for whoever comes second.
func lockHome(home string) (*os.File, error) {
	path := filepath.Join(home, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, wrap(err, "opening %s", path)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := os.ReadFile(path)
		f.Close()
		return nil, fail(InUse, "stop that process first, or set FORKD_HOME to another directory",
			"%s is in use by another forkd (process %s)", home, strings.TrimSpace(string(pid)))
	}
	err = errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n"))
	if err != nil {
		f.Close()
		return nil, wrap(err, "writing %s", path)
	}
	return f, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// closeTime is how long branches that are being written may go on when the
// daemon ends.
const closeTime = 2 * time.Minute

// Close suspends the workspaces and pauses the sandboxes that are to be kept (see
// pauseAll), lets branches be written, ends all other sandboxes and gives up the
// home. What could not be saved is an error, and resumes from what was saved last. A second Close does
// nothing.
func (m *Manager) Close() error {
	m.arrivals.end(true)
	m.mu.Lock()
	before := m.closed
	m.closed = true
	m.mu.Unlock()
	if before {
		return nil
	}
	err := errors.Join(m.suspendAll(), m.pauseAll())
	for _, a := range m.arrivals.pending() {
		m.opts.Log.Warn("a process that does not answer ends, and what lives in it", "process", a.cell.PID, "sandboxes", len(a.boxes))
	}
	m.writers.drain(closeTime)
	m.mu.Lock()
	boxes := m.boxes
	m.boxes = make(map[string]*box)
	m.mu.Unlock()
	m.dismiss(boxes)
	m.cells.Close(true) // first: a machine that is closed in a silent cell is waited for
	closeAll(boxes)
	return errors.Join(err, m.shut())
}

// dismiss notes that sandboxes end because the daemon does.
func (m *Manager) dismiss(boxes map[string]*box) {
	var run []string
	for id, b := range boxes {
		if b.kept() { // what it has done since is lost, and the next daemon says so, too
			if b.state() == Running {
				b.blame(reasonUnsaved)
			}
			m.noteEnd(b)
			continue
		}
		if b.state() == Running {
			b.blame(reasonClosed)
			run = append(run, id)
			continue
		}
		m.journal.Gone(b.endReason(), id)
	}
	m.journal.Gone(reasonClosed, run...)
}

// Abandon gives up the home and leaves the sandboxes to a later Manager. Branches that
// are being written are finished first.
func (m *Manager) Abandon() error {
	m.arrivals.end(false) // what is not taken over by now is left to the later one, too
	m.mu.Lock()
	before := m.closed
	m.closed = true
	m.mu.Unlock()
	if before {
		return nil
	}
	m.writers.drain(closeTime)
	m.notes.flush()
	m.cells.Close(false)
	return m.shut()
}

// shut gives up the home, when the cells are gone.
func (m *Manager) shut() error {
	m.mu.Lock()
	warm := slices.Collect(maps.Keys(m.warm))
	m.mu.Unlock()
	m.cool(warm...)
	m.store.Close()
	m.journal.Close()
	return m.lock.Close()
}

// source returns the opened snapshot of a tag, opening it the first time. The
// caller releases it: whoever removes the snapshot, or fails to write it, may let
// go of it at any moment.
func (m *Manager) source(tag string) (*snapshot.Snapshot, error) {
	if !snapshot.ValidTag(tag) {
		return nil, badTag(tag)
	}
	if snap := m.warmSource(tag); snap != nil {
		return snap, nil
	}
	snap, err := m.store.Open(tag)
	if err != nil {
		return nil, m.openError(tag, err)
	}
	if err := m.opts.Engine.offers(snap.Manifest); err != nil {
		snap.Release()
		return nil, err
	}
	return m.keep(tag, snap)
}

func (m *Manager) warmSource(tag string) *snapshot.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	snap := m.warm[tag]
	if snap != nil {
		snap.Retain()
	}
	return snap
}

// keep publishes an opened snapshot, unless another request was quicker or the
// snapshot has been removed meanwhile. Like source it returns a reference, for the one
// that it is given.
func (m *Manager) keep(tag string, snap *snapshot.Snapshot) (*snapshot.Snapshot, error) {
	defer snap.Release() // without the lock: cells may have to be told
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.warm[tag]; other != nil {
		return other.Retain(), nil
	}
	if m.closed || !m.store.Exists(tag) {
		return nil, fail(NotFound, "", "there is no snapshot %q any more", tag)
	}
	if snap.Cut == nil { // otherwise it is in a file soon
		m.warm[tag] = snap.Retain()
	}
	return snap.Retain(), nil
}

// cool forgets opened snapshots. Who uses one keeps it.
func (m *Manager) cool(tags ...string) {
	var gone []*snapshot.Snapshot
	m.mu.Lock()
	for _, tag := range tags {
		if snap := m.warm[tag]; snap != nil {
			delete(m.warm, tag)
			gone = append(gone, snap)
		}
	}
	m.mu.Unlock()
	for _, snap := range gone {
		snap.Release() // as in keep
	}
}

func (m *Manager) openError(tag string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, snapshot.ErrNotBootable):
		return fail(NotFound, m.tagHint(), "there is no snapshot %q", tag)
	case errors.Is(err, snapshot.ErrNotBootable):
		return &Error{Code: NotBootable, Message: "snapshot is damaged", Err: err,
			Hint: fmt.Sprintf("remove it with `forkd rmi %s` and make it again", tag)}
	}
	return wrap(err, "opening snapshot %q", tag)
}

// tagHint lists what there is instead.
func (m *Manager) tagHint() string {
	var tags []string
	for _, e := range m.store.List() {
		if m.keptFor(e.Tag) == "" {
			tags = append(tags, e.Tag)
		}
	}
	if len(tags) == 0 {
		return "no snapshot exists yet: `forkd quickstart` makes one"
	}
	return "snapshots here: " + strings.Join(tags, ", ")
}

func badTag(tag string) error {
	return fail(InvalidArgument, "a tag is 1 to 64 letters, digits, '-' or '_'", "bad tag %q", tag)
}

// silentHint is what there is to do about a cell that does not answer.
const silentHint = "if it was stopped, `kill -CONT` has it go on, and it may do then what it was asked for; `forkd kill` gives the sandbox up"

// wrap turns an error of the host into an Error, recognising a full disk and a cell that does not
// answer.
func wrap(err error, format string, args ...any) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	message := fmt.Sprintf(format, args...)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &Error{Code: NoSpace, Message: message, Err: err, Hint: "free some disk space, or set FORKD_HOME to another disk"}
	case errors.Is(err, cell.ErrSilent):
		return &Error{Code: Timeout, Message: message, Err: err, Hint: silentHint}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: Timeout, Message: message, Err: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: Unavailable, Message: message, Err: err}
	}
	return &Error{Code: Internal, Message: message, Err: err}
}
