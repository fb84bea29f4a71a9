package cell

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/cell/celltest"
	"github.com/forkd-dev/forkd/internal/cell/inside"
	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// TestMain lets the tests start themselves as a cell.
func TestMain(m *testing.M) {
	if os.Getenv("CELL_TEST") == "" {
		os.Exit(m.Run())
	}
	if _, err := jail.Enter(jail.Profile{NativeCode: true}); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	l, err := net.FileListener(os.NewFile(ListenerFD, "listener"))
	if err == nil {
		cfg := inside.Config{
			Name: os.Args[1], Listener: l.(*net.UnixListener), NewEngine: func() engine.Engine { return soft.New(1) },
			Scratch: os.NewFile(ScratchFD, "scratch"), Idle: time.Second, Alone: 10 * time.Second,
		}
		var s *inside.Server
		if s, err = inside.New(cfg); err == nil {
			err = s.Serve()
		}
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// lab is a host for tests, with a store.
type lab struct {
	t     *testing.T
	dir   string
	store *snapshot.Store
	*Host
}

// newLab makes a host whose cells are processes. change may be nil.
func newLab(t *testing.T, dir string, change func(*Options)) *lab {
	t.Helper()
	jailer, err := jail.New(jail.Config{Group: fmt.Sprint("forkd-test-cells-", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(jailer.Close)
	l := &lab{t: t, dir: dir}
	if l.store, err = snapshot.OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(log.Name()); err == nil && len(text) > 0 && t.Failed() {
			t.Logf("the cells said:\n%s", text)
		}
		log.Close()
	})
	opts := Options{
		Dir: filepath.Join(dir, "cells"), Launch: &Program{Jail: jailer, Args: []string{"cell"}, Env: []string{"CELL_TEST=1"}, Log: log},
		Patience: time.Minute, OpenLayer: l.store.OpenLayer, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&opts)
	}
	if l.Host, err = NewHost(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close(true)
		l.store.Close()
	})
	return l
}

// next has the daemon end without its cells, and returns the lab of a later one, and what that finds.
func (l *lab) next() (later *lab, found []Found) {
	l.t.Helper()
	l.Host.Close(false)
	l.store.Close()
	later = newLab(l.t, l.dir, nil)
	found, _ = later.recover()
	return later, found
}

// recover takes over all cells of an earlier daemon.
func (l *lab) recover() (found []Found, lost map[string]error) {
	l.t.Helper()
	cells, lost, err := l.Recover()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range cells {
		f, err := c.TakeOver(l.t.Context())
		if err != nil {
			lost[c.Name] = err
			continue
		}
		found = append(found, *f)
	}
	return found, lost
}

// shortDir returns a directory for sockets, whose names must be short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cell")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// boot starts a program in a cell of its own.
func (l *lab) boot(program func(*rv.Asm)) *VM {
	l.t.Helper()
	c, err := l.Fresh()
	if err != nil {
		l.t.Fatal(err)
	}
	kernel := filepath.Join(l.t.TempDir(), "kernel")
	if err := os.WriteFile(kernel, machinetest.Kernel(program), 0o600); err != nil {
		l.t.Fatal(err)
	}
	f, err := os.Open(kernel)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	root, err := snapshot.OpenRoot(l.root())
	if err != nil {
		l.t.Fatal(err)
	}
	defer root.Release()
	v, err := c.Boot(l.t.Context(), BootSpec{VCPUs: 1, Memory: board.MinRAMBytes / page.Size, Scratch: 16, Raw: true, Root: root, Kernel: f})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := v.Start(); err != nil {
		l.t.Fatal(err)
	}
	return v
}

// root returns the path of a root image.
func (l *lab) root() string {
	path := filepath.Join(l.dir, "root")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(path, make([]byte, page.Size), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	return path
}

// count returns what the program Count has counted in a cut.
func (l *lab) count(c snapshot.Cut) uint64 {
	l.t.Helper()
	memory, scratch, err := c.Stacks(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer memory.Release()
	defer scratch.Release()
	const gpa = machinetest.Counter - board.RAMBase
	return binary.LittleEndian.Uint64(memory.Get(gpa / page.Size)[gpa%page.Size:])
}

// branch cuts a machine that counts.
func (l *lab) branch(v *VM) (*Cut, uint64) {
	l.t.Helper()
	cut, err := v.Branch(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(cut.Release)
	return cut, l.count(cut)
}

// counted waits until a machine has counted.
func (l *lab) counted(v *VM) {
	l.t.Helper()
	l.executed(v, 10_000)
}

// executed waits until a machine has executed so much.
func (l *lab) executed(v *VM, instructions uint64) {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if v.Refresh(); v.Counters().Instructions >= instructions {
			return
		}
		if time.Now().After(end) {
			l.t.Fatal("the machine does not execute")
		}
	}
}

// counting starts a machine that counts, and returns when it has.
func (l *lab) counting() *VM {
	l.t.Helper()
	v := l.boot(machinetest.Count)
	l.counted(v)
	return v
}

// seed returns a snapshot of a machine that counts, for children of it, and what that had counted.
func (l *lab) seed() (s *snapshot.Snapshot, n uint64) {
	l.t.Helper()
	cut, n := l.branch(l.counting())
	return l.snapshot("s", cut), n
}

// snapshot writes a cut down.
func (l *lab) snapshot(tag string, c *Cut) *snapshot.Snapshot {
	l.t.Helper()
	man := snapshot.Manifest{Tag: tag, CreatedAt: time.Now(), Engine: "soft", ISA: "riscv64", VCPUs: 1, MemoryMiB: board.MinRAMBytes >> 20}
	if err := l.store.Create(l.t.Context(), man, snapshot.Contents{State: c.State(), Cut: c, Root: l.root()}); err != nil {
		l.t.Fatal(err)
	}
	s, err := l.store.Open(tag)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(s.Release)
	return s
}

func noNote() (json.RawMessage, error) { return json.RawMessage(`"of the source"`), nil }

// fork makes machines of a snapshot in a cell.
func (l *lab) fork(c *Cell, s *snapshot.Snapshot, notes ...string) []*VM {
	l.t.Helper()
	spec := Spec{Common: json.RawMessage(`"of all"`)}
	for _, n := range notes {
		b, _ := json.Marshal(n)
		spec.Children = append(spec.Children, Child{Note: b})
	}
	vms, errs := c.Fork(l.t.Context(), s, noNote, spec)
	if err := errors.Join(errs...); err != nil {
		l.t.Fatal(err)
	}
	return vms
}

func (l *lab) shared(key string) *Cell {
	l.t.Helper()
	c, err := l.Shared(l.t.Context(), key)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

func awaitEnd(t *testing.T, v *VM) machine.Ending {
	t.Helper()
	select {
	case <-v.Done():
	case <-time.After(time.Minute):
		t.Fatal("the machine does not end")
	}
	return v.Ending()
}

// TestBranchesAndTheirChildren follows a machine through cuts in memory and on disk, and
// its children through two cells.
func TestBranchesAndTheirChildren(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	parent := l.counting()
	first, n1 := l.branch(parent)
	l.counted(parent)
	second, n2 := l.branch(parent)
	if n1 == 0 || n2 <= n1 {
		t.Fatalf("counted %d, then %d", n1, n2)
	}
	if again := l.count(first); again != n1 {
		t.Errorf("the first cut had %d and has %d", n1, again)
	}
	disk := l.snapshot("two", second)
	if digests, saved := second.Layers(); digests == 0 || len(saved) == 0 {
		t.Errorf("%d layers over the first, %d in files", digests, len(saved))
	}
	if again := l.count(second); again != n2 {
		t.Errorf("the second cut had %d and has %d from its file", n2, again)
	}
	// From memory where it is, from memory elsewhere, and from the disk.
	inMemory := snapshot.InMemory(&snapshot.Manifest{VCPUs: 1}, first.State(), retain(first), disk.Root.Retain())
	defer inMemory.Release()
	for name, v := range map[string]*VM{
		"in its cell":   l.fork(parent.Cell(), inMemory, "a")[0],
		"elsewhere":     l.fork(l.shared("x"), inMemory, "b")[0],
		"from the disk": l.fork(l.shared("x"), disk, "c")[0],
	} {
		least := map[bool]uint64{true: n2, false: n1}[name == "from the disk"]
		frozen, err := v.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := l.count(frozen); got != least {
			t.Errorf("%s: begins at %d, not %d", name, got, least)
		}
		frozen.Release()
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		l.counted(v)
		if _, got := l.branch(v); got <= least {
			t.Errorf("%s: went from %d to %d", name, least, got)
		}
		v.Close()
	}
	if now := l.count(first); now != n1 {
		t.Errorf("children have changed what they stand on: %d became %d", n1, now)
	}
}

func retain(c *Cut) *Cut {
	c.Retain()
	return c
}

func TestMachineEndsItself(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	ended := make(chan struct{})
	v := l.boot(func(a *rv.Asm) { machinetest.PowerOff(a, board.PowerReset) })
	v.OnEnd(func() { close(ended) })
	if e := awaitEnd(t, v); e.Exit != engine.Reset || e.Err != nil {
		t.Errorf("ended with %+v", e)
	}
	<-ended
	if err := v.Start(); !errors.Is(err, machine.ErrEnded) {
		t.Errorf("started again: %v", err)
	}
	if _, err := v.Dial(t.Context(), 1); !errors.Is(err, machine.ErrEnded) {
		t.Errorf("dialed: %v", err)
	}
}

func TestMemoryQuota(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.boot(func(a *rv.Asm) { // writes to page after page
		a.Label("loop")
		a.LI(machinetest.T0, 4096)
		a.R(rv.ADD, machinetest.S0, machinetest.S0, machinetest.T0)
		a.S(rv.SD, machinetest.T0, 0, machinetest.S0)
		a.J(machinetest.Zero, "loop")
	})
	v.Pause()
	frozen, err := v.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Release()
	s := l.snapshot("hog", frozen)
	vms, errs := l.shared("x").Fork(t.Context(), s, noNote, Spec{MemoryPages: 8, Children: make([]Child, 1)})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	if err := vms[0].Start(); err != nil {
		t.Fatal(err)
	}
	if e := awaitEnd(t, vms[0]); !errors.Is(e.Err, page.ErrQuota) {
		t.Errorf("ended with %v", e)
	}
}

// TestCellDies: what lived in a cell ends with a reason, and nothing else does.
func TestCellDies(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	s, _ := l.seed()
	doomed, spared := l.fork(l.shared("x"), s, "a", "b"), l.fork(l.shared("y"), s, "c")
	if err := doomed[0].Cell().proc.kill(); err != nil {
		t.Fatal(err)
	}
	// Whoever needs it meanwhile, or later, is told the same.
	for range 50 {
		for what, do := range map[string]func() error{
			"asked": func() error { return doomed[0].Start() },
			"told":  func() error { return doomed[1].SetNote(json.RawMessage("1")) },
		} {
			if err := do(); err != nil && !strings.HasPrefix(err.Error(), fmt.Sprintf("%v: process %d ", ErrLost, doomed[0].Cell().PID)) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	for _, v := range doomed {
		if e := awaitEnd(t, v); !errors.Is(e.Err, ErrLost) || !strings.Contains(e.String(), "killed") {
			t.Errorf("ended with %v", e)
		}
		v.Close()
	}
	if err := doomed[0].Start(); !errors.Is(err, ErrLost) {
		t.Errorf("started: %v", err)
	}
	if err := spared[0].Start(); err != nil {
		t.Errorf("the other cell: %v", err)
	}
	<-doomed[0].Cell().gone
	if again := l.shared("x"); again == doomed[0].Cell() {
		t.Error("the dead cell is used again")
	}
	// What was cut in a cell that has died since is on the disk, or lost.
	other, _ := l.branch(spared[0])
	if err := spared[0].Cell().proc.kill(); err != nil {
		t.Fatal(err)
	}
	<-spared[0].Cell().gone
	if _, _, err := other.Stacks(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("fetched from a dead cell: %v", err)
	}
}

// TestStoppedCell: nobody waits for ever for a process that the host has stopped.
func TestStoppedCell(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.counting()
	celltest.Stop(t, v.Cell().PID)
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := v.Dial(ctx, 1); err == nil {
			t.Error("a stopped process answers")
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := v.Branch(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("branched: %v", err)
	}
	celltest.Continue(t, v.Cell().PID)
	l.counted(v)
	if _, n := l.branch(v); n == 0 {
		t.Error("it does not go on")
	}
}

// TestRecover: machines go on while no daemon is there, and the next one finds them.
func TestRecover(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	parent := l.counting()
	cut, n := l.branch(parent)
	s := l.snapshot("s", cut)
	vms := l.fork(l.shared("x"), s, "runs", "dormant")
	if err := vms[0].Start(); err != nil {
		t.Fatal(err)
	}
	l.counted(vms[0])
	zero := vms[0].ClockZero()
	memory, _ := l.branch(vms[0])
	inMemory := snapshot.InMemory(s.Manifest, memory.State(), retain(memory), s.Root.Retain())
	l.fork(l.shared("x"), inMemory, "of a cut")
	vms[0].SetNote(json.RawMessage(`"changed"`))
	vms[0].Refresh() // is answered after the note has arrived
	name, last := vms[0].Cell().Name, vms[0].Counters().Instructions
	dormant, age := vms[1].id, vms[1].age
	l, found := l.next()
	var f *Found
	for i := range found {
		if found[i].Cell.Name == name {
			f = &found[i]
		}
	}
	if f == nil || len(f.VMs) != 3 {
		t.Fatalf("found %+v", found)
	}
	if l.shared("x") != f.Cell {
		t.Error("the cell is not for its key any more")
	}
	at := slices.IndexFunc(f.VMs, func(v FoundVM) bool { return v.VM.id == dormant })
	if got := f.VMs[at].VM.age; got != age || age == 0 {
		t.Errorf("a machine that has never run is %v old, and was %v", got, age)
	}
	snaps := make(map[uint64]*snapshot.Snapshot)
	for _, src := range f.Sources {
		if string(src.Note) != `"of the source"` {
			t.Errorf("the source's note is %s", src.Note)
		}
		back, err := f.Cell.Snapshot(t.Context(), src, s.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		defer back.Release()
		snaps[src.ID] = back
	}
	for _, v := range f.VMs {
		if string(v.Common) != `"of all"` {
			t.Errorf("the common note is %s", v.Common)
		}
		switch note := string(v.Note); note {
		case `"changed"`:
			if !v.Started() || !v.ClockZero().Equal(zero) {
				t.Errorf("it is %v that it runs, since %v", v.Started(), v.ClockZero())
			}
			l.executed(v.VM, last+1)
		case `"dormant"`:
			if v.Started() {
				t.Error("a dormant machine runs")
			}
			if back := snaps[v.Source]; back == nil || back.Cut != nil || !bytes.Equal(back.State, s.State) {
				t.Errorf("it is of %+v", back)
			}
			if got, err := v.Freeze(t.Context()); err != nil || l.count(got) != n {
				t.Errorf("it is at another place: %v", err)
			}
		case `"of a cut"`:
			if back := snaps[v.Source]; back == nil || back.Cut == nil {
				t.Errorf("it is of %+v", back)
			}
		default:
			t.Errorf("the note is %s", note)
		}
	}
	// The sources are good for more.
	for _, back := range snaps {
		l.fork(f.Cell, back, "new")
	}
}

// TestRecoverEmptyCells: daemons that die one after the other do not pile up cells.
func TestRecoverEmptyCells(t *testing.T) {
	dir := shortDir(t)
	for range 3 {
		l := newLab(t, dir, func(o *Options) { o.Patience = 10 * time.Millisecond })
		l.recover()
		for end := time.Now().Add(time.Minute); len(l.Cells()) > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d empty cells stay", len(l.Cells()))
			}
		}
		if _, err := l.Fresh(); err != nil { // kept ready
			t.Fatal(err)
		}
		if c := l.shared("x"); c.Name == "" { // nothing lives in it any more
			t.Fatal("no cell")
		}
		// As when a daemon is killed.
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		for _, c := range l.Cells() {
			c.leave()
			<-c.gone
		}
		l.store.Close()
	}
}

// TestRecordsOfOthers: a process that only has the number of a cell is left alone.
func TestRecordsOfOthers(t *testing.T) {
	dir := shortDir(t)
	l := newLab(t, dir, nil)
	me, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	older := me
	older.Start--
	boot := me
	boot.Boot = "another boot"
	ended := exec.Command("true")
	if err := ended.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended.Wait() })
	for _, zombie, err := stat(ended.Process.Pid); !zombie; _, zombie, err = stat(ended.Process.Pid) {
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	unheard, err := identify(ended.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]record{
		"aaaaaaaa": {recordVersion, "aaaaaaaa", 1, "", older, nil, nil},
		"bbbbbbbb": {recordVersion, "bbbbbbbb", 1, "", boot, nil, nil},
		"cccccccc": {recordVersion, "cccccccc", 99, "", me, nil, nil},
		"dddddddd": {99, "dddddddd", 1, "", me, nil, nil},
		"eeeeeeee": {recordVersion, "ffffffff", 1, "", me, nil, nil},
		"kkkkkkkk": {recordVersion, "kkkkkkkk", 1, "", unheard, nil, nil},
	} {
		b, _ := json.Marshal(r)
		if err := os.WriteFile(filepath.Join(dir, "cells", name+recordSuffix), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"gggggggg.json", "hhhhhhhh.sock", "pages-123", "iiiiiiii.new"} {
		if err := os.WriteFile(filepath.Join(dir, "cells", name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	full := []string{"llllllll.json", "mmmmmmmm.sock"}
	for _, name := range full {
		if err := os.MkdirAll(filepath.Join(dir, "cells", name, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	found, lost := l.recover()
	if len(found) != 0 {
		t.Errorf("found %+v", found)
	}
	for name, why := range map[string]string{
		"aaaaaaaa": "ended while no daemon watched", "kkkkkkkk": "ended while no daemon watched", "bbbbbbbb": "ended with the host, which was restarted",
		"cccccccc": "was ended: the cell speaks version 99", "dddddddd": "was ended: version 99",
		"eeeeeeee": `its record cannot be read: it is of "ffffffff"`, "gggggggg": "its record cannot be read",
		"llllllll": "its record cannot be read",
	} {
		if err := lost[name]; !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), why) {
			t.Errorf("cell %s is lost because: %v; want %q", name, err, why)
		}
	}
	// Nobody's files are removed with a directory that happens to be there.
	var left []string
	entries, err := os.ReadDir(filepath.Join(dir, "cells"))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if err != nil || !slices.Equal(left, full) {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestCellOfAnotherVersion: a cell that this daemon cannot talk to is ended.
func TestCellOfAnotherVersion(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.boot(machinetest.Count)
	c := v.Cell()
	r := record{recordVersion, c.Name, wire.Version + 1, "", c.proc.identity, c.proc.inmate, c.seal}
	if err := l.write(r); err != nil {
		t.Fatal(err)
	}
	if _, found := l.next(); len(found) != 0 {
		t.Errorf("found %+v", found)
	}
	for end := time.Now().Add(10 * time.Second); c.proc.lives(); time.Sleep(time.Millisecond) { // it was killed, which takes a moment
		if time.Now().After(end) {
			t.Fatal("the process is there")
		}
	}
}

// TestEmptyCellsEnd: a cell in which nothing lives any more does not stay for long.
func TestEmptyCellsEnd(t *testing.T) {
	l := newLab(t, shortDir(t), func(o *Options) { o.Patience, o.Spare = 10*time.Millisecond, 1 })
	s, _ := l.seed()
	c := l.shared("x")
	vms := l.fork(c, s, "a", "b")
	vms[0].Close()
	select {
	case <-c.gone:
		t.Fatal("a cell has ended in which somebody lives")
	case <-time.After(100 * time.Millisecond):
	}
	vms[1].Close()
	select {
	case <-c.gone:
	case <-time.After(time.Minute):
		t.Fatal("an empty cell stays")
	}
	v := l.fork(l.shared("x"), s, "c")[0]
	if err := v.Start(); err != nil {
		t.Error(err)
	}
}

// TestAloneCellEnds: without a daemon an empty cell does not stay.
func TestAloneCellEnds(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	c, err := l.Fresh()
	if err != nil {
		t.Fatal(err)
	}
	c.conn.Close()
	<-c.gone
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-c.proc.exited:
	case <-ctx.Done():
		t.Fatal("the process stays")
	}
}

func TestLongDirectory(t *testing.T) {
	if _, err := NewHost(Options{Dir: "/tmp/" + strings.Repeat("x", 100)}); err == nil || !strings.Contains(err.Error(), "107") {
		t.Error(err)
	}
}

func second[A any](_ A, err error) error { return err }
