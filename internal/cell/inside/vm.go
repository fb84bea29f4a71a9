package inside

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/image/ext4"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// vm is a machine and what belongs to it.
type vm struct {
	id      uint64
	source  uint64
	root    *page.Stack // a reference
	vcpus   int
	machine *machine.Machine
	common  json.RawMessage
	first   atomic.Pointer[beginner] // nil: it has taken its first steps, or nobody has asked it anything

	starting sync.Mutex // held while first starts the machine

	mu     sync.Mutex
	note   []byte      // guarded by mu
	zero   int64       // see wire.Started; guarded by mu
	ended  *wire.Ended // guarded by mu
	rest   rest        // guarded by mu
	closed bool        // guarded by mu
}

// close ends the machine. It may be called more than once.
func (v *vm) close() {
	v.mu.Lock()
	again := v.closed
	v.closed = true
	v.rest.cancel()
	v.mu.Unlock()
	v.begun()
	if !again {
		v.machine.Close()
		v.root.Release()
	}
}

// disk returns a reference to the machine's root disk.
func (v *vm) disk() (*page.Stack, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, machine.ErrEnded
	}
	return v.root.Retain(), nil
}

// fork makes machines of a source.
func (s *Server) fork(m *wire.Message, f wire.Fork) (*result, error) {
	o, done, err := s.use(f.Source)
	if err != nil {
		return nil, err
	}
	defer done()
	children, err := wire.ParseChildren(m.Blob)
	if err = errors.Join(err, wire.CheckNote(f.Note)); err != nil {
		return nil, err
	}
	if f.Limits.DiskBytes > 0 {
		f.Limits.DiskBytes += s.inherited(o)
	}
	var mu sync.Mutex
	var born wire.Born
	each(len(children), func(i int) {
		var v *vm
		err := page.Guard(func() (err error) {
			v, err = s.spawn(o, f, children[i])
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			born.Age = v.machine.Age().Nanoseconds()
			return
		}
		if born.Errors == nil {
			born.Errors = make(map[int]*wire.Error)
		}
		born.Errors[i] = wire.ToError(err)
	})
	return &result{body: born}, nil
}

// each calls do for every i below n, from as many goroutines as there are CPUs.
func each(n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// spawn makes one machine of a source.
func (s *Server) spawn(o *source, f wire.Fork, c wire.Child) (*vm, error) {
	s.layout.RLock()
	defer s.layout.RUnlock()
	eng := s.engine(o.vcpus)
	memory, err := eng.NewMemory(o.memory, s.memory, f.MemoryPages)
	if err != nil {
		return nil, fmt.Errorf("mapping memory: %w", err)
	}
	v := &vm{id: c.ID, source: o.id, common: f.Note, note: c.Note}
	return v, s.make(v, machine.Config{
		Engine: eng, VCPUs: o.vcpus, Memory: memory, Root: o.root, Scratch: page.NewOverlay(o.scratch, s.scratch, 0),
		GenerationID: c.Generation, Limits: f.Limits, Console: io.Discard, State: o.state,
	})
}

// inherited returns how many bytes of a source's disk its layers hold.
func (s *Server) inherited(o *source) (n int64) {
	s.layout.RLock()
	defer s.layout.RUnlock()
	for _, l := range o.scratch.Layers() {
		n += int64(l.Len()) * page.Size
	}
	return n
}

// make makes a machine and makes it known.
func (s *Server) make(v *vm, cfg machine.Config) (err error) {
	cfg.Entropy = rand.Reader
	cfg.OnEnd = func() { s.retire(v) }
	if v.machine, err = machine.New(cfg); err != nil {
		return fmt.Errorf("restoring machine: %w", err)
	}
	v.vcpus, v.root = cfg.VCPUs, cfg.Root.Retain()
	s.mu.Lock()
	_, taken := s.vms[v.id]
	if !taken {
		s.vms[v.id] = v
	}
	s.mu.Unlock()
	if taken {
		v.close()
		return fmt.Errorf("there is a machine %d already", v.id)
	}
	return nil
}

// boot makes a machine that starts a kernel.
func (s *Server) boot(m *wire.Message, b wire.Boot) (*result, error) {
	cfg, err := s.booting(m, b)
	if err != nil {
		return nil, err
	}
	defer cfg.Root.Release()
	v := &vm{id: b.ID}
	cfg.Console = &console{server: s, vm: b.ID}
	if err := s.make(v, cfg); err != nil {
		return nil, err
	}
	return nil, nil
}

// booting returns what a machine that starts a kernel is made of. The caller releases
// the root.
func (s *Server) booting(m *wire.Message, b wire.Boot) (cfg machine.Config, err error) {
	cfg = machine.Config{Engine: s.engine(b.VCPUs), VCPUs: b.VCPUs, Boot: &machine.Boot{CommandLine: b.CommandLine, Seed: make([]byte, 64)}}
	for i, to := range []*[]byte{&cfg.Boot.Kernel, &cfg.Boot.Initrd} {
		size := []int64{b.KernelSize, b.InitrdSize}[i]
		if size == 0 {
			continue
		}
		f, err := take(m, i)
		if err != nil {
			return cfg, err
		}
		*to, err = readAll(f, size)
		f.Close()
		if err != nil {
			return cfg, err
		}
	}
	rand.Read(cfg.GenerationID[:])
	rand.Read(cfg.Boot.Seed)
	if b.Memory > page.MaxLimit || b.Scratch > page.MaxLimit {
		return cfg, errors.New("more memory than an address space may have")
	}
	if cfg.Scratch, err = s.newScratch(b.Scratch, b.ScratchEmpty); err != nil {
		return cfg, err
	}
	empty := page.NewStack(b.Memory)
	defer empty.Release()
	if cfg.Memory, err = cfg.Engine.NewMemory(empty, s.memory, 0); err == nil {
		if cfg.Root, err = s.stack(b.Root); err != nil {
			cfg.Memory.Close()
		}
	}
	if err != nil {
		cfg.Scratch.Close()
		return cfg, fmt.Errorf("reserving %d pages of memory: %w", b.Memory, err)
	}
	return cfg, nil
}

// newScratch returns a disk with an empty ext4 file system, or one of zeros.
func (s *Server) newScratch(pages page.Number, zeros bool) (*page.Overlay, error) {
	empty := page.NewStack(pages)
	defer empty.Release()
	disk := page.NewOverlay(empty, s.scratch, 0)
	if zeros {
		return disk, nil
	}
	opts := ext4.Options{Size: int64(pages) * page.Size, Time: time.Now()}
	rand.Read(opts.UUID[:])
	if _, err := ext4.Format(disk, opts); err != nil {
		disk.Close()
		return nil, fmt.Errorf("formatting the scratch disk: %w", err)
	}
	return disk, nil
}

// console tells the daemon what a guest prints that is booted.
type console struct {
	server *Server
	vm     uint64
}

func (c *console) Write(b []byte) (int, error) {
	body, _ := json.Marshal(wire.Ref{ID: c.vm}) // a number does not fail
	c.server.send(&wire.Message{Op: wire.OpConsole, Body: body, Blob: slices.Clone(b)})
	return len(b), nil
}

// get returns a machine.
func (s *Server) get(id uint64) (*vm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[id]
	if v == nil {
		return nil, noMachine(id)
	}
	return v, nil
}

func noMachine(id uint64) error {
	return fmt.Errorf("%w: there is no machine %d", machine.ErrEnded, id)
}

// retire tells that a machine has ended by itself, and frees it. It stays known until
// it is closed, for a daemon that comes later.
func (s *Server) retire(v *vm) {
	ending := v.machine.Ending()
	e := &wire.Ended{ID: v.id, Exit: int(ending.Exit), Err: wire.ToError(ending.Err)}
	v.mu.Lock()
	v.ended = e
	v.mu.Unlock()
	v.close()
	s.freed()
	body, err := json.Marshal(e)
	if err != nil {
		fmt.Fprintln(os.Stderr, "forkd cell:", err)
		return
	}
	s.send(&wire.Message{Op: wire.OpEnded, Body: body})
}

// start runs a machine.
func (s *Server) start(_ *wire.Message, r wire.Ref) (*result, error) {
	v, err := s.get(r.ID)
	if err != nil {
		return nil, err
	}
	if err := v.start(time.Now()); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return &result{body: wire.Started{Zero: v.zero}}, nil
}

// start runs the machine. If it has never run its time goes on as of then.
func (v *vm) start(then time.Time) error {
	if err := v.machine.StartAsOf(then); err != nil {
		return err
	}
	zero := v.machine.ClockZero().UnixNano()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.zero = zero
	return nil
}

func (s *Server) pause(_ *wire.Message, r wire.Ref) (*result, error) {
	v, err := s.get(r.ID)
	if err != nil {
		return nil, err
	}
	v.begun()
	v.machine.Pause()
	return nil, nil
}

// cut makes a machine, as it is at one instant, a source.
func (s *Server) cut(_ *wire.Message, c wire.Cut) (*result, error) {
	v, err := s.get(c.VM)
	if err != nil {
		return nil, err
	}
	freeze := v.machine.Freeze
	if c.Live {
		freeze = v.machine.Branch
	}
	s.cuts.Store(true)
	s.layout.RLock()
	defer s.layout.RUnlock()
	root, err := v.disk()
	if err != nil {
		return nil, err
	}
	frozen, err := freeze()
	if err != nil {
		root.Release()
		return nil, err
	}
	o := &source{id: c.Source, vcpus: v.vcpus, state: frozen.State, stacks: stacks{
		memory: frozen.Memory, scratch: frozen.Scratch, root: root,
	}}
	if below, ok := v.machine.Stacks(); ok {
		below.Memory.Release()
		below.Scratch.Release()
		o.memoryBase, o.scratchBase = below.MemoryBase, below.ScratchBase
	}
	described := s.describe(o)
	if err := s.keep(o); err != nil {
		s.freed() // what was sealed
		return nil, err
	}
	return &result{body: described, blob: frozen.State}, nil
}

// note keeps what a later daemon is to know of a machine or a source.
func (s *Server) note(_ *wire.Message, n wire.Note) (*result, error) {
	if err := wire.CheckNote(n.Note); err != nil {
		return nil, err
	}
	if n.Source != 0 {
		o, err := s.source(n.Source)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		o.note = n.Note
		return nil, nil
	}
	v, err := s.get(n.VM)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.note = n.Note
	return nil, nil
}

func (s *Server) closeVM(_ *wire.Message, r wire.Ref) (*result, error) {
	s.mu.Lock()
	v := s.vms[r.ID]
	delete(s.vms, r.ID)
	delete(s.pins, r.ID)
	s.mu.Unlock()
	last := []wire.Stat{}
	if v != nil {
		if st, ok := v.stat(); ok {
			last = append(last, st)
		}
		v.close()
		s.freed()
	}
	return &result{body: last}, nil
}

// stats returns figures of machines.
func (s *Server) stats(_ *wire.Message, q wire.Stats) (*result, error) {
	s.mu.Lock()
	var vms []*vm
	for _, v := range s.vms {
		if len(q.VMs) == 0 || slices.Contains(q.VMs, v.id) {
			vms = append(vms, v)
		}
	}
	s.mu.Unlock()
	stats := make([]wire.Stat, 0, len(vms))
	for _, v := range vms {
		if st, ok := v.stat(); ok {
			stats = append(stats, st)
		}
	}
	return &result{body: stats}, nil
}

// stat returns figures of a machine, unless it is closed.
func (v *vm) stat() (wire.Stat, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return wire.Stat{}, false
	}
	n := v.machine.Counters()
	return wire.Stat{
		ID: v.id, PrivateBytes: int64(v.machine.PrivateBytes()), MemoryBytes: int64(v.machine.MemoryBytes()),
		CodeBytes: int64(v.machine.CodeBytes()), Resident: v.machine.Resident(),
		Instructions: n.Instructions, Translated: n.Translated, BusyNS: int64(n.Busy), SleepNS: int64(v.machine.Sleep()),
	}, true
}
