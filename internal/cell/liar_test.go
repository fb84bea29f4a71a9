package cell

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/jail"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// liar starts a cell within this process that answers what a test wants.
type liar struct {
	mu      sync.Mutex
	answers map[wire.Op]func(*wire.Message) *wire.Message // others are refused; guarded by mu
}

// answer has the cell answer so from now on.
func (l *liar) answer(op wire.Op, body any, files ...*os.File) {
	l.do(op, func(*wire.Message) *wire.Message { return &wire.Message{Body: encode(body), Files: files} })
}

func (l *liar) do(op wire.Op, fn func(*wire.Message) *wire.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[op] = fn
}

func encode(body any) json.RawMessage {
	b, _ := json.Marshal(body) // of the package's own
	return b
}

func (l *liar) Launch(_ string, listener *net.UnixListener, _ *os.File) (*process, error) {
	f, err := listener.File() // the listener stays the caller's
	if err != nil {
		return nil, err
	}
	again, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	id, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	go func() {
		defer again.Close()
		for range 2 {
			c, err := again.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			var opening [wire.OpeningSize]byte
			if _, err := io.ReadFull(c, opening[:]); err != nil {
				return
			}
			if p, _ := wire.ParseOpening(opening); p == wire.Control {
				go l.serve(wire.NewConn(c.(*net.UnixConn)))
			} else {
				defer io.Copy(io.Discard, c) // until it is closed
			}
		}
	}()
	return &process{identity: id, inside: true}, nil
}

func (*liar) Recover(context.Context, []*jail.Process) error { return nil }
func (*liar) Confines() bool                                 { return false }
func (*liar) Close()                                         {}

func (l *liar) serve(c *wire.Conn) {
	for {
		m, err := c.Receive()
		if err != nil {
			return
		}
		l.mu.Lock()
		answer := l.answers[m.Op]
		l.mu.Unlock()
		reply := &wire.Message{Err: &wire.Error{Text: "no"}}
		if answer != nil {
			reply = answer(m)
		}
		if reply.ID = m.ID; m.ID != 0 {
			_ = c.Send(reply) // whoever is gone need not be answered
		}
		closeAll(m.Files)
	}
}

// extents of a liar's machine, in pages.
const lieMemory, lieScratch = 64, 16

// honest is what a cell would say of a cut of it.
func honest(id uint64) wire.Source {
	return wire.Source{
		ID: id, Memory: wire.Stack{Limit: lieMemory, Layers: []uint64{1 | wire.SealedBit}}, Scratch: wire.Stack{Limit: lieScratch, Layers: []uint64{}},
		Root: wire.Stack{Limit: 1, Layers: []uint64{3}},
	}
}

// lying boots a machine in a cell that lies.
func lying(t *testing.T) (*liar, *VM) {
	t.Helper()
	l := &liar{answers: make(map[wire.Op]func(*wire.Message) *wire.Message)}
	for _, op := range []wire.Op{wire.OpHello, wire.OpBoot} {
		l.answer(op, struct{}{})
	}
	l.answer(wire.OpClose, []wire.Stat{})
	dir := shortDir(t)
	h, err := NewHost(Options{Dir: dir, Launch: l, Patience: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(false) })
	c, err := h.Fresh()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "any")
	if err := os.WriteFile(path, make([]byte, page.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := snapshot.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Release()
	kernel, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	v, err := c.Boot(t.Context(), BootSpec{VCPUs: 1, Memory: lieMemory, Scratch: lieScratch, Root: root, Kernel: kernel})
	if err != nil {
		t.Fatal(err)
	}
	return l, v
}

// lies are sources that no machine of a liar's extent makes.
var lies = map[string]func(*wire.Source){
	"no memory":         func(s *wire.Source) { s.Memory.Limit = 0 },
	"more memory":       func(s *wire.Source) { s.Memory.Limit++ },
	"more disk":         func(s *wire.Source) { s.Scratch.Limit = page.MaxLimit },
	"vast memory":       func(s *wire.Source) { s.Memory.Limit = 1<<32 - 1 },
	"a base above":      func(s *wire.Source) { s.Memory.Base = 2 },
	"a base below":      func(s *wire.Source) { s.Scratch.Base = -1 },
	"layers for ever":   func(s *wire.Source) { s.Memory.Layers = make([]uint64, wire.MaxLayers+1) },
	"as many on a disk": func(s *wire.Source) { s.Scratch.Layers = make([]uint64, wire.MaxLayers+1) },
}

// cut cuts a machine of which the cell says something else than it would if it were honest.
func (l *liar) cut(t *testing.T, v *VM, change func(*wire.Source)) (*Cut, error) {
	t.Helper()
	l.do(wire.OpCut, func(m *wire.Message) *wire.Message {
		var ask wire.Cut
		if err := json.Unmarshal(m.Body, &ask); err != nil {
			t.Error(err)
		}
		s := honest(ask.Source)
		change(&s)
		return &wire.Message{Body: encode(s)}
	})
	return v.Branch(t.Context())
}

// TestLiesAboutCuts: a cut is of a machine as it was made.
func TestLiesAboutCuts(t *testing.T) {
	l, v := lying(t)
	for name, change := range lies {
		if _, err := l.cut(t, v, change); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := l.cut(t, v, func(*wire.Source) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	// And stays so.
	for name, change := range lies {
		s := honest(c.spec.ID)
		change(&s)
		l.answer(wire.OpStacks, s)
		if _, _, err := c.Stacks(t.Context()); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s, told later: %v", name, err)
		}
	}
}

// TestSlowLies: a cell that always lacks a layer, and takes its time to say so, has as much of that as
// for one answer.
func TestSlowLies(t *testing.T) {
	before := stacksTime
	stacksTime = 50 * time.Millisecond
	defer func() { stacksTime = before }()
	l, v := lying(t)
	c, err := l.cut(t, v, func(*wire.Source) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	var asked atomic.Int32
	l.do(wire.OpStacks, func(*wire.Message) *wire.Message {
		asked.Add(1)
		time.Sleep(5 * time.Millisecond)
		return &wire.Message{Err: wire.ToError(wire.ErrNoLayer)}
	})
	if _, _, err := c.Stacks(t.Context()); err == nil || errors.Is(err, wire.ErrNoLayer) {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}

// TestLiesAboutPages: what a cell hands over is as much as it says, fits in, and stays as
// it is.
func TestLiesAboutPages(t *testing.T) {
	l, v := lying(t)
	c := v.Cell()
	numbers := []byte{5, 0, 0, 0, 7, 0, 0, 0} // of the pages 5 and 7
	var writing sync.Mutex                    // for what write leaves behind
	fetch := func(said wire.Fetched, write func(*os.File) error) (*page.Layer, error) {
		l.do(wire.OpFetch, func(m *wire.Message) *wire.Message {
			writing.Lock()
			defer writing.Unlock()
			if err := write(m.Files[0]); err != nil {
				t.Error(err)
			}
			return &wire.Message{Body: encode(said), Blob: numbers}
		})
		got, err := c.fetch(t.Context(), 1, lieMemory)
		writing.Lock()
		defer writing.Unlock()
		return got, err
	}
	pages := func(n int) func(*os.File) error {
		return func(f *os.File) error { _, err := f.Write(make([]byte, n*page.Size)); return err }
	}
	two := wire.Fetched{Limit: lieMemory, Stored: 2}
	var kept []byte
	for name, lie := range map[string]struct {
		said  wire.Fetched
		write func(*os.File) error
	}{
		"of a larger space":  {wire.Fetched{Limit: page.MaxLimit, Stored: 2}, pages(2)},
		"of a smaller space": {wire.Fetched{Limit: 8, Stored: 2}, pages(2)},
		"fewer pages":        {two, pages(1)},
		"more pages":         {two, pages(3)},
		"none of them there": {two, func(f *os.File) error { return f.Truncate(2 * page.Size) }},
		"less than none":     {wire.Fetched{Limit: lieMemory, Stored: -1}, pages(2)},
		"it can still write": {two, func(f *os.File) (err error) {
			if err = pages(2)(f); err == nil {
				kept, err = unix.Mmap(int(f.Fd()), 0, page.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			}
			return err
		}},
	} {
		if _, err := fetch(lie.said, lie.write); !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, page.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := unix.Munmap(kept); err != nil {
		t.Fatal(err)
	}
	var again *os.File
	got, err := fetch(two, func(f *os.File) error {
		fd, err := unix.Dup(int(f.Fd()))
		again = os.NewFile(uintptr(fd), "again")
		return errors.Join(err, pages(2)(f))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	defer again.Close()
	if _, err := again.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("written after it was handed over: %v", err)
	}
	if err := unix.Fallocate(int(again.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, page.Size); !errors.Is(err, unix.EPERM) {
		t.Errorf("taken away after it was handed over: %v", err)
	}
}

// TestLiesAboutFigures: a machine has no more to itself than it has.
func TestLiesAboutFigures(t *testing.T) {
	l, v := lying(t)
	const memory, all = lieMemory * page.Size, (lieMemory + lieScratch) * page.Size
	for _, tc := range []struct{ said, want wire.Stat }{
		{wire.Stat{MemoryBytes: 1 << 60, PrivateBytes: 1 << 62}, wire.Stat{MemoryBytes: memory, PrivateBytes: all}},
		{wire.Stat{MemoryBytes: -1 << 60, PrivateBytes: -1}, wire.Stat{}},
		{wire.Stat{MemoryBytes: 5, PrivateBytes: 7}, wire.Stat{MemoryBytes: 5, PrivateBytes: 7}},
		{wire.Stat{MemoryBytes: 5, PrivateBytes: 7, CodeBytes: 9}, wire.Stat{MemoryBytes: 14, PrivateBytes: 16}},
		{wire.Stat{CodeBytes: 1 << 62}, wire.Stat{MemoryBytes: maxCode, PrivateBytes: maxCode}},
		{wire.Stat{CodeBytes: -1}, wire.Stat{}},
	} {
		tc.said.ID = v.id
		l.answer(wire.OpStats, []wire.Stat{tc.said})
		if v.Refresh(); v.MemoryBytes() != tc.want.MemoryBytes || v.PrivateBytes() != tc.want.PrivateBytes {
			t.Errorf("%+v: it has %d bytes, %d of them memory", tc.said, v.PrivateBytes(), v.MemoryBytes())
		}
	}
	l.answer(wire.OpClose, []wire.Stat{{ID: v.id, MemoryBytes: 1 << 60}})
	if v.Close(); v.MemoryBytes() != memory {
		t.Errorf("it had %d bytes in the end", v.MemoryBytes())
	}
}

// TestLiesAboutFoundSources: what machines of a found cell were forked from is of the size
// that the daemon has noted, and has one root image.
func TestLiesAboutFoundSources(t *testing.T) {
	l, v := lying(t)
	c := v.Cell()
	man := &snapshot.Manifest{
		Root: snapshot.FileRef{Size: page.Size}, Memory: snapshot.StackRef{Pages: lieMemory}, Scratch: snapshot.StackRef{Pages: lieScratch},
	}
	sparse := func(pages int64) *os.File {
		f, err := memfile()
		if err == nil {
			err = f.Truncate(pages * page.Size)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	l.answer(wire.OpReturn, struct{}{})
	for name, change := range lies {
		s := honest(1)
		change(&s)
		if _, err := c.Snapshot(t.Context(), FoundSource{ID: 1, spec: s}, man); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, root := range map[string]wire.Stack{
		"no root image": {Limit: 1}, "two": {Limit: 1, Layers: []uint64{3, 4}}, "a larger one": {Limit: 2, Layers: []uint64{3}},
	} {
		s := honest(1)
		s.Root = root
		if _, err := c.Snapshot(t.Context(), FoundSource{ID: 1, spec: s}, man); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := func(name string) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := c.Snapshot(t.Context(), FoundSource{ID: 1, spec: honest(1)}, man)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, page.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
			t.Errorf("%s: refusing it took %d bytes of memory", name, n)
		}
	}
	for name, d := range map[string]wire.Layer{
		"a vast disk":              {Kind: page.Raw, Limit: lieMemory},
		"of a vast space":          {Kind: page.Raw, Limit: page.MaxLimit},
		"pages that are not":       {Kind: page.Pages, Limit: lieMemory, Stored: 2},
		"of a kind that is not":    {Kind: 9, Limit: lieMemory},
		"no file of layers":        {Kind: page.Stored, Limit: lieMemory},
		"fewer pages than nothing": {Kind: page.Pages, Limit: lieMemory, Stored: -1},
	} {
		l.answer(wire.OpFile, d, sparse(page.MaxLimit))
		refused(name)
	}
	l.do(wire.OpFile, func(m *wire.Message) *wire.Message {
		var of wire.Ref
		if err := json.Unmarshal(m.Body, &of); err != nil {
			t.Error(err)
		}
		if of.ID == 3 { // the root image
			return &wire.Message{Body: encode(wire.Layer{Kind: page.Raw, Limit: 1}), Files: []*os.File{sparse(1)}}
		}
		d := wire.Layer{Kind: page.Pages, Limit: lieMemory, Stored: 1}
		return &wire.Message{Body: encode(d), Blob: make([]byte, 4), Files: []*os.File{sparse(1)}}
	})
	refused("a page that is not there")
}
