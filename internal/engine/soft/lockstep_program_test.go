package soft_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/riscvtest"
)

// bare is a program without a kernel, and the memory that it runs in.
type bare struct {
	base, size uint64
	load       func(mem *memory.Space, h *hart.Hart)
	ends       bool   // with a call
	limit      uint64 // instructions after which it has run for long enough; 0: there is none
	slice      int    // greatest length of a slice
	seed       uint64 // of how it is cut into slices
	taught     bool   // the second machine knows from another what it will need
}

// start makes the machines.
func (b *bare) start(t testing.TB) (*lockstep, func() (bool, error)) {
	l := newLockstep(b.seed, b.slice)
	stack := b.stack(t)
	for i := range l.sides {
		s := newSide(i<<20, b.memory(t, stack), func() uint64 { return l.ticks })
		if err := s.tap(riscvtest.DeviceBase, riscvtest.DeviceSize, new(echo)); err != nil {
			t.Fatal(err)
		}
		b.load(b.memory(t, stack), s.hart) // again, for the hart
		l.sides[i] = s
	}
	l.attach()
	if s := l.sides[1]; b.taught {
		b.teach(t, s.cache, stack)
		// There is nothing to know of one without page tables.
		if set, _ := s.cache.Workset(stack); set != nil {
			s.cpu.LookAhead(s.Memory, set)
			l.ahead = len(s.Memory.Written())
		}
	}
	return l, func() (bool, error) { return b.next(l) }
}

// stack returns the memory that the machines begin with.
func (b *bare) stack(t testing.TB) *page.Stack {
	empty := page.NewStack(page.Number(b.size / page.Size))
	defer empty.Release()
	overlay := page.NewOverlay(empty, lockstepArena, 0)
	defer overlay.Close()
	mem, err := memory.NewSpace(memory.Slot{Base: b.base, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	b.load(mem, hart.New(0, nil))
	stack := overlay.Seal()
	t.Cleanup(stack.Release)
	return stack
}

// memory returns memory over a stack.
func (b *bare) memory(t testing.TB, stack *page.Stack) *memory.Space {
	overlay := page.NewOverlay(stack, lockstepArena, 0)
	t.Cleanup(overlay.Close)
	mem, err := memory.NewSpace(memory.Slot{Base: b.base, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// teach has a machine over the stack execute a while, and cache learn from it.
func (b *bare) teach(t testing.TB, cache *interp.Cache, stack *page.Stack) {
	mem := b.memory(t, stack)
	if mem.Untouched() != stack {
		t.Fatal("a fresh machine's memory is not known to be that of the stack")
	}
	s := newSideOf(cache, mem, func() uint64 { return 0 })
	if err := s.tap(riscvtest.DeviceBase, riscvtest.DeviceSize, new(echo)); err != nil {
		t.Fatal(err)
	}
	b.load(b.memory(t, stack), s.hart)
	if _, wanted := cache.Workset(stack); !wanted {
		t.Fatal("nobody wants to know")
	}
	touches := interp.Touches()
	s.cpu.Attach(&s.Machine, s.hart)
	s.cpu.Record(&touches)
	s.cpu.Run(b.slice)
	cache.Learn(stack, mem, touches)
}

// next executes a slice.
func (b *bare) next(l *lockstep) (done bool, err error) {
	for _, s := range l.sides {
		if s.hart.TimerArmed() {
			s.hart.UpdateTimer(l.ticks)
		}
	}
	event, err := l.step()
	switch {
	case err != nil:
		return false, err
	case b.ends && event == interp.Call || b.limit > 0 && l.retired() >= b.limit:
		return true, l.lookAtPages()
	case b.ends && l.sides[0].hart.PC == 0:
		return false, fmt.Errorf("the program trapped: it is wrong")
	}
	return false, nil
}

// run runs the program to its end in lockstep.
func (b *bare) run(t testing.TB) *lockstep {
	t.Helper()
	needsTranslator(t)
	l, next := b.start(t)
	for {
		done, err := next()
		if err != nil {
			t.Fatalf("%v\n%s", err, explain(err, true, func() (*lockstep, func() (bool, error)) { return b.start(t) }))
		}
		if done {
			return l
		}
	}
}

// echo is a device that remembers what was written to it last.
type echo struct{ last uint64 }

func (e *echo) Read(offset uint64, width int) uint64 {
	return (e.last + offset) & (1<<(8*width-1)<<1 - 1)
}

func (e *echo) Write(offset uint64, width int, v uint64) { e.last = e.last*31 + offset + v }

// unprivileged is a program of random code that ends.
func unprivileged(t testing.TB, rng *rand.Rand, seed uint64, piece func(*riscvtest.Coder)) *bare {
	p := riscvtest.NewProgram()
	for i := range riscvtest.ScratchSize {
		p.Data[i] = byte(rng.Uint32())
	}
	p.PutState(riscvtest.ResultBase, func(i int) uint64 { return riscvtest.Word(rng, i) })
	p.LoadState(riscvtest.ResultBase)
	piece(&riscvtest.Coder{Program: p, Rand: rng})
	p.SaveState(riscvtest.ResultBase)
	p.Emit(isa.Inst{Op: isa.ECALL})
	img, err := p.Image()
	if err != nil {
		t.Skip(err) // only a fuzzer's input makes so much
	}
	return &bare{
		base: riscvtest.ImageBase, size: riscvtest.ImageSize, ends: true, slice: 5000, seed: seed,
		load: func(mem *memory.Space, h *hart.Hart) {
			if err := mem.Write(riscvtest.ImageBase, img); err != nil {
				t.Fatal(err)
			}
			h.PC = riscvtest.ImageBase
			h.Status |= hart.StatusFS
		},
	}
}

// privileged is a program in the machine that load prepares, which goes on for
// ever.
func privileged(load func(*memory.Space, *hart.Hart, []byte, uint64), code []byte, seed, limit uint64) *bare {
	return &bare{
		base: riscvtest.RAMBase, size: riscvtest.RAMSize, limit: limit, slice: 1000, seed: seed,
		load: func(mem *memory.Space, h *hart.Hart) { load(mem, h, code, seed) },
	}
}

// TestLockstepPrograms compares on random programs of unprivileged instructions.
func TestLockstepPrograms(t *testing.T) {
	programs := uint64(40)
	if testing.Short() {
		programs = 6
	}
	needsTranslator(t)
	executed := uint64(0)
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 12))
			l := unprivileged(t, rng, seed, (*riscvtest.Coder).Loops).run(t)
			if executed += l.retired(); !l.translated() {
				t.Error("nothing was translated")
			}
		})
	}
	if executed < programs*10_000 {
		t.Errorf("%d programs executed only %d instructions", programs, executed)
	}
}

// TestLockstepWords compares on code as hash functions consist of. It begins with an empty
// TLB, and some of its accesses cross pages, so that native code is left and comes back in
// all places.
func TestLockstepWords(t *testing.T) {
	programs := uint64(300)
	if testing.Short() {
		programs = 60
	}
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 14))
			program := unprivileged(t, rng, seed, (*riscvtest.Coder).Rounds)
			program.slice = 500
			program.run(t)
		})
	}
}

// TestLockstepTraps compares on random code in both modes that traps, is
// interrupted, and changes control registers and page tables.
func TestLockstepTraps(t *testing.T) {
	needsTranslator(t)
	programs := uint64(150)
	if testing.Short() {
		programs = 20
	}
	ahead := 0
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 13))
			code := make([]byte, 16+rng.IntN(1200))
			for i := range code {
				code[i] = byte(rng.Uint32())
			}
			for _, taught := range []bool{false, true} {
				trapping := privileged(riscvtest.Trapping, riscvtest.Instructions(code), seed, 30_000)
				hostile := privileged(riscvtest.Hostile, riscvtest.Instructions(code), seed, 3_000)
				trapping.taught, hostile.taught = taught, taught
				ahead += trapping.run(t).ahead
				ahead += hostile.run(t).ahead
			}
		})
	}
	if ahead == 0 {
		t.Error("no machine has learned anything from another")
	}
}

// FuzzLockstep compares on what a fuzzer makes of bytes: instructions for one of
// the machines above. Programs are long for a fuzzer: -fuzzminimizetime=10x keeps
// it from spending its time on making them shorter.
func FuzzLockstep(f *testing.F) {
	rng := rand.New(rand.NewPCG(14, 15))
	for seed := range uint64(15) {
		code := make([]byte, 40+rng.IntN(400))
		for i := range code {
			code[i] = byte(rng.Uint32())
		}
		f.Add(uint8(seed), seed, code)
	}
	f.Fuzz(func(t *testing.T, kind uint8, seed uint64, b []byte) {
		var program *bare
		switch kind % 5 {
		case 0:
			program = privileged(riscvtest.Trapping, riscvtest.Instructions(b), seed, 5_000)
		case 1:
			program = privileged(riscvtest.Hostile, b, seed, 2_000)
		case 2:
			program = unprivileged(t, fromBytes(b, seed), seed, (*riscvtest.Coder).Loops)
			program.limit = 20_000
		case 3:
			program = unprivileged(t, fromBytes(b, seed), seed, func(c *riscvtest.Coder) { c.Straight(100) })
		case 4:
			program = unprivileged(t, fromBytes(b, seed), seed, (*riscvtest.Coder).Rounds)
			program.slice = 500
		}
		program.taught = kind/5%2 == 1
		program.run(t)
	})
}

// fromBytes draws from bytes, as long as there are any.
func fromBytes(b []byte, seed uint64) *rand.Rand {
	source := &riscvtest.Bytes{Left: b}
	source.Seed(seed, 16)
	return rand.New(source)
}

// TestLockstepFindsFaults: whatever goes wrong on one side is noticed, and the
// instruction after which it does is named.
func TestLockstepFindsFaults(t *testing.T) {
	const at = 4000
	data := uint64(riscvtest.RAMBase + 0x8_0000)
	event := interp.Budget
	for name, fault := range map[string]struct {
		spoil func(s *side) error
		want  string
	}{
		"integer": {func(s *side) error { s.hart.X[9] = 3; return nil }, "x9 is 0x3, want 0x0"},
		"float":   {func(s *side) error { s.hart.F[31]++; return nil }, "f31 is 0x1, want 0x0"},
		"flags":   {func(s *side) error { s.hart.FCSR = 1; return nil }, "fcsr is 0x1, want 0x0"},
		"dirty":   {func(s *side) error { s.hart.Status &^= hart.StatusFS; return nil }, "sstatus is 0x0, want 0x6000"},
		"csr":     {func(s *side) error { s.hart.WriteCSR(hart.CSRSscratch, 7); return nil }, "sscratch is 0x7, want 0x0"},
		"mode":    {func(s *side) error { s.hart.Mode = hart.User; return nil }, "mode is 0x0, want 0x1"},
		"jump":    {func(s *side) error { s.hart.PC += 4; return nil }, "pc is 0x80003e84, want 0x80003e80"},
		"count":   {func(s *side) error { s.hart.Retired--; return nil }, "pc is 0x80003e84, want 0x80003e80"},
		"store":   {func(s *side) error { return s.Memory.Write(data+3, []byte{1}) }, "memory at 0x80080003 is 0x1, want 0x0"},
		"read":    {func(s *side) error { s.Bus.Read(riscvtest.DeviceBase+4, 4); return nil }, "got [read of 4 bytes at 0x10000004: 0x4], want []"},
		"write":   {func(s *side) error { s.Bus.Write(riscvtest.DeviceBase, 2, 9); return nil }, "got [write of 2 bytes at 0x10000000: 0x9], want []"},
		"event":   {func(s *side) error { event = interp.Wait; return nil }, "event 1"},
	} {
		t.Run(name, func(t *testing.T) {
			needsTranslator(t)
			b := &bare{base: riscvtest.RAMBase, size: riscvtest.RAMSize, ends: true, slice: 700, seed: 1, load: counting(t)}
			start := func() (*lockstep, func() (bool, error)) {
				l, next := b.start(t)
				s, spoilt := l.sides[1], false
				s.run = func(budget int) interp.Event {
					first := budget
					if s.hart.Retired < at && !spoilt {
						first = min(budget, int(at-s.hart.Retired))
					}
					if e := s.cpu.Run(first); e != interp.Budget || s.hart.Retired != at || spoilt {
						return e
					}
					event, spoilt = interp.Budget, true
					if err := fault.spoil(s); err != nil {
						t.Fatal(err)
					}
					if budget == first || event != interp.Budget {
						return event
					}
					return s.cpu.Run(budget - first)
				}
				return l, next
			}
			_, next := start()
			done, err := false, error(nil)
			for !done && err == nil {
				done, err = next()
			}
			if err == nil {
				t.Fatal("the fault was not noticed")
			}
			why := explain(err, true, start)
			if !strings.Contains(why, fault.want) || !strings.Contains(why, fmt.Sprintf("\t%d\t", at-1)) || strings.Contains(why, fmt.Sprintf("\t%d\t", at)) {
				t.Errorf("%v\n%s\nwant %q, after instruction %d", err, why, fault.want, at-1)
			}
		})
	}
}

// counting is a program of many additions.
func counting(t *testing.T) func(*memory.Space, *hart.Hart) {
	return func(mem *memory.Space, h *hart.Hart) {
		a := isa.NewAsm(riscvtest.RAMBase)
		for range 5000 {
			a.I(isa.ADDI, 7, 7, 1)
		}
		a.Op(isa.ECALL)
		if err := mem.Write(riscvtest.RAMBase, a.Bytes()); err != nil {
			t.Fatal(err)
		}
		h.PC, h.Status = riscvtest.RAMBase, hart.StatusFS
	}
}
