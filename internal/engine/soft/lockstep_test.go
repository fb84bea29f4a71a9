package soft_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/interp"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/jit"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
	"github.com/forkd-dev/forkd/internal/state"
)

// The lockstep tests run two machines side by side, which begin in the same
// state and see the same time and the same devices: one on the interpreter, one
// on translated code. After every slice the harts must be equal to the last
// bit, and so must be what they did to devices in it, and now and then all
// memory that was written.

// needsTranslator skips a test where nothing is translated.
func needsTranslator(t testing.TB) {
	if !jit.Supported() {
		t.Skip("there is no translator for this host")
	}
}

// lockstepArena is shared, since its memory comes in large pieces.
var lockstepArena = page.NewArena()

// side is one of the two machines.
type side struct {
	interp.Machine
	bus      *bus.Bus
	hart     *hart.Hart
	cpu      *interp.CPU
	cache    *interp.Cache
	code     *jit.Cache                    // nil: the reference
	run      func(budget int) interp.Event // the CPU's, unless a test spoils it
	event    interp.Event
	accesses []access // to devices, since the last comparison
}

// access is one access to a device.
type access struct {
	write bool
	gpa   uint64
	width int
	value uint64
}

func (a access) String() string {
	kind := "read"
	if a.write {
		kind = "write"
	}
	return fmt.Sprintf("%s of %d bytes at %#x: %#x", kind, a.width, a.gpa, a.value)
}

// newSide makes a machine with that memory, whose bus is empty. It is the
// reference unless it has bytes for translated code.
func newSide(codeBytes int, mem *memory.Space, time func() uint64) *side {
	var code *jit.Cache
	if codeBytes > 0 {
		code = jit.NewCache(codeBytes)
	}
	s := newSideOf(interp.NewCache(4096, code), mem, time)
	s.code = code
	return s
}

// newSideOf is newSide with a cache.
func newSideOf(cache *interp.Cache, mem *memory.Space, time func() uint64) *side {
	cpu := new(interp.CPU)
	devices := new(bus.Bus)
	s := &side{
		Machine: interp.Machine{Memory: mem, Bus: devices, Codes: interp.NewCodes(mem, cache)},
		bus:     devices,
		hart:    hart.New(0, time),
		cpu:     cpu,
		cache:   cache,
		run:     cpu.Run,
	}
	s.hart.Power = hart.Started
	return s
}

// tap records the accesses to a device.
type tap struct {
	side *side
	base uint64
	bus.Device
}

func (t tap) Read(offset uint64, width int) uint64 {
	v := t.Device.Read(offset, width)
	t.side.accesses = append(t.side.accesses, access{false, t.base + offset, width, v})
	return v
}

func (t tap) Write(offset uint64, width int, v uint64) {
	t.side.accesses = append(t.side.accesses, access{true, t.base + offset, width, v})
	t.Device.Write(offset, width, v)
}

// tap maps a device, with a tap.
func (s *side) tap(base, size uint64, d bus.Device) error {
	return s.bus.Map(base, size, tap{s, base, d})
}

// lockstep is both machines, the reference first.
type lockstep struct {
	sides [2]*side
	ticks uint64 // the time, which stands still within a slice
	idle  uint64 // ticks that were skipped while the guest waited
	rng   *rand.Rand
	slice int // greatest length of a slice
	steps int
	same  uint64 // instructions retired when all pages were compared last
	ahead int    // pages that the second machine has had copied before it began

	// For looking closer: from where on pages are compared after every slice, from
	// where on slices are short, and a slice of a given length that is traced.
	watch, fine, at *divergence
	trace           []string
}

// divergence is a slice after which the machines differ.
type divergence struct {
	from   uint64 // instructions retired before it
	budget int
	what   string
	late   bool // it is of several slices, after which memory was looked at
}

func (d *divergence) Error() string {
	return fmt.Sprintf("the machines differ after the slice of %d instructions that begins after %d: %s", d.budget, d.from, d.what)
}

func newLockstep(seed uint64, slice int) *lockstep {
	return &lockstep{rng: rand.New(rand.NewPCG(seed, 11)), slice: slice}
}

func (l *lockstep) attach() {
	for _, s := range l.sides {
		s.cpu.Attach(&s.Machine, s.hart)
	}
}

// translated reports whether the second machine has executed translated code at
// all.
func (l *lockstep) translated() bool { return l.sides[1].Codes.Translated.Load() > 0 }

// instructionsPerTick is how slow time goes: some 300 million instructions a
// second.
const instructionsPerTick = 32

func (l *lockstep) retired() uint64 { return l.sides[0].hart.Retired }

// shortSlice is long enough for translated code, and short enough to read.
const shortSlice = 32

// budget draws the length of the next slice: slices end in all places.
func (l *lockstep) budget() int {
	n := 1 + l.rng.IntN(l.slice)
	if l.rng.IntN(8) == 0 {
		n = 1 + l.rng.IntN(min(l.slice, 64))
	}
	if l.fine != nil && l.retired() >= l.fine.from {
		n = min(n, shortSlice)
	}
	if l.at != nil && l.retired() == l.at.from {
		n = l.at.budget
	}
	return n
}

// step runs a slice on both sides. The event is that of both.
func (l *lockstep) step() (interp.Event, error) {
	l.ticks = l.retired()/instructionsPerTick + l.idle
	from, budget := l.retired(), l.budget()
	differ := func(err error) (interp.Event, error) {
		return 0, &divergence{from: from, budget: budget, what: err.Error()}
	}
	for i, s := range l.sides {
		s.accesses = s.accesses[:0]
		if i == 0 && l.at != nil && l.at.from == from {
			s.event = l.traced(s, budget)
			continue
		}
		s.event = s.run(budget)
	}
	if err := l.align(); err != nil {
		return differ(err)
	}
	if err := l.compare(); err != nil {
		return differ(err)
	}
	// Pages are many: look at them less and less often.
	l.steps++
	watched := l.watch != nil && l.retired() > l.watch.from
	if watched || l.steps >= 64 && l.steps&(l.steps-1) == 0 || l.steps%4096 == 0 {
		if err := l.lookAtPages(); err != nil {
			return 0, err
		}
	}
	return l.sides[0].event, l.failed()
}

// lookAtPages compares all pages.
func (l *lockstep) lookAtPages() error {
	if err := l.comparePages(); err != nil {
		return &divergence{from: l.same, budget: int(l.retired() - l.same), what: err.Error(), late: true}
	}
	l.same = l.retired()
	return nil
}

func (l *lockstep) failed() error {
	for _, s := range l.sides {
		if s.event == interp.Failed {
			return fmt.Errorf("the host failed: %w", s.cpu.Err())
		}
	}
	return nil
}

// align has the side that is behind catch up: one may end its slice early,
// after an access to a device for instance, or an instruction late.
func (l *lockstep) align() error {
	a, b := l.sides[0], l.sides[1]
	for range 1000 {
		behind, missing := a, int64(b.hart.Retired-a.hart.Retired)
		if missing == 0 {
			if a.event != b.event {
				return fmt.Errorf("event %d, not %d, at %#x", b.event, a.event, a.hart.PC)
			}
			return nil
		}
		if missing < 0 {
			behind, missing = b, -missing
		}
		if behind.event != interp.Budget {
			return fmt.Errorf("event %d of one side only, %d instructions before the other stopped, at %#x",
				behind.event, missing, behind.hart.PC)
		}
		behind.event = behind.run(int(missing))
	}
	return errors.New("the sides do not come to the same instruction")
}

// traced is Run in single steps.
func (l *lockstep) traced(s *side, budget int) interp.Event {
	for end := s.hart.Retired + uint64(budget); ; {
		l.trace = append(l.trace, fmt.Sprintf("\t%d\t%s", s.hart.Retired, s.next()))
		if event := s.run(1); event != interp.Budget || s.hart.Retired >= end {
			return event
		}
	}
}

// next disassembles the instruction at the PC.
func (s *side) next() string {
	var m mmu.MMU
	m.Attach(s.Memory, s.hart)
	raw := uint32(0)
	for i := range uint64(2) {
		gpa, fault := m.Translate(s.hart.PC+2*i, mmu.Fetch)
		half, err := s.Memory.Uint16(gpa)
		if fault != mmu.NoFault || err != nil {
			break
		}
		raw |= uint32(half) << (16 * i)
	}
	return fmt.Sprintf("%#x\t%v", s.hart.PC, isa.Decode(raw))
}

// compare compares the harts and the accesses to devices.
func (l *lockstep) compare() error {
	a, b := l.sides[0], l.sides[1]
	if !bytes.Equal(saved(a.hart), saved(b.hart)) {
		return errors.New(differences(a.hart, b.hart))
	}
	if !slices.Equal(a.accesses, b.accesses) {
		i := 0
		for i < min(len(a.accesses), len(b.accesses)) && a.accesses[i] == b.accesses[i] {
			i++
		}
		return fmt.Errorf("accesses to devices, from number %d on: got %v, want %v", i, b.accesses[i:], a.accesses[i:])
	}
	return nil
}

// saved is all that is architectural in a hart.
func saved(h *hart.Hart) []byte {
	var w state.Writer
	h.Save(w.Section("hart", hart.StateVersion))
	return w.Bytes()
}

// differences names the registers that differ.
func differences(want, got *hart.Hart) string {
	var d []string
	note := func(name string, w, g uint64) {
		if w != g {
			d = append(d, fmt.Sprintf("%s is %#x, want %#x", name, g, w))
		}
	}
	note("pc", want.PC, got.PC)
	note("mode", uint64(want.Mode), uint64(got.Mode))
	note("power", uint64(want.Power), uint64(got.Power))
	for i := range 32 {
		note(fmt.Sprintf("x%d", i), want.X[i], got.X[i])
		note(fmt.Sprintf("f%d", i), want.F[i], got.F[i])
	}
	note("fcsr", uint64(want.FCSR), uint64(got.FCSR))
	note("sstatus", want.Status, got.Status)
	for csr, name := range map[uint32]string{
		hart.CSRSie: "sie", hart.CSRSip: "sip", hart.CSRStvec: "stvec", hart.CSRSscratch: "sscratch", hart.CSRSepc: "sepc",
		hart.CSRScause: "scause", hart.CSRStval: "stval", hart.CSRScounteren: "scounteren", hart.CSRSenvcfg: "senvcfg",
		hart.CSRSatp: "satp", hart.CSRStimecmp: "stimecmp",
	} {
		note(name, supervisorCSR(want, csr), supervisorCSR(got, csr))
	}
	return strings.Join(d, ", ")
}

func supervisorCSR(h *hart.Hart, csr uint32) uint64 {
	mode := h.Mode
	defer func() { h.Mode = mode }()
	h.Mode = hart.Supervisor
	v, _ := h.ReadCSR(csr)
	return v
}

// comparePages compares all memory that either side has written.
func (l *lockstep) comparePages() error {
	a, b := l.sides[0].Memory, l.sides[1].Memory
	for _, slot := range a.Slots() {
		for gpa := slot.Base; gpa < slot.Base+slot.Size(); gpa += page.Size {
			if !a.Private(gpa) && !b.Private(gpa) {
				continue
			}
			p, q := a.ReadPage(gpa), b.ReadPage(gpa)
			if *p == *q {
				continue
			}
			for i := range p {
				if p[i] != q[i] {
					return fmt.Errorf("memory at %#x is %#x, want %#x", gpa+uint64(i), q[i], p[i])
				}
			}
		}
	}
	return nil
}

// explain says more of a divergence by running all again, up to where it was
// found: in short slices from there, then with the one that differs traced, and
// that made shorter and shorter if each run is quick. start makes the machines
// anew; next executes a slice of them.
func explain(found error, quick bool, start func() (l *lockstep, next func() (done bool, err error))) string {
	var d *divergence
	if !errors.As(found, &d) {
		return ""
	}
	var watch, fine *divergence
	until := func(at *divergence) (*lockstep, error) {
		l, next := start()
		l.watch, l.fine, l.at = watch, fine, at
		for at == nil || l.retired() <= at.from {
			if done, err := next(); done || err != nil {
				return l, err
			}
		}
		return l, l.lookAtPages()
	}
	if d.late {
		watch = d
		if _, err := until(nil); !errors.As(err, &d) {
			return "it does not happen again"
		}
	}
	first := d
	if fine = first; d.budget > shortSlice {
		if _, err := until(nil); !errors.As(err, &d) {
			fine, d = nil, first // only in a slice that is not short
		}
	}
	low, high := 0, d.budget
	for quick && high-low > 1 {
		middle := (low + high) / 2
		if _, err := until(&divergence{from: d.from, budget: middle}); err != nil {
			high = middle
		} else {
			low = middle
		}
	}
	l, err := until(&divergence{from: d.from, budget: high})
	if err == nil {
		return "it does not happen again"
	}
	const shown = 60
	trace := l.trace[max(0, len(l.trace)-shown):]
	return fmt.Sprintf("narrowed down to %v\nthe reference executed:\n%s", err, strings.Join(trace, "\n"))
}
