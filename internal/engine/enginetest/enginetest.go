// Package enginetest is the suite that every engine passes. It is imported by
// tests only.
//
// The guest programs are a few instructions each, by name and instruction set;
// they talk to the test through the registers of one device. What they do is
// said here once, in the tests; an instruction set adds a file of programs.
package enginetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/state"
)

// isa is what the suite needs to know of an instruction set.
type isa struct {
	ramBase    uint64
	entry      uint64 // where programs begin, from ramBase
	deviceBase uint64
	interrupt  int // the input that programs listen to
	countPages int // that "count" writes to, or makes the processor write to
	maxVCPUs   int // of a machine
	loads      int // accesses of "load"
	programs   map[string][]byte
	lacks      map[string]string // why there is no program of that name
}

var isas = map[engine.ISA]isa{engine.RISCV64: riscv64, engine.AMD64: amd64}

const (
	ramPages   = 64
	deviceSize = 0x1000

	// dataOffset is where, in RAM, programs and tests share data.
	dataOffset = 0x1_0000
)

// Run tests the engine that newEngine makes.
func Run(t *testing.T, newEngine func() engine.Engine) {
	tests := []test{
		{"store", testStore},
		{"load", testLoad},
		{"power-off", testPowerOff},
		{"console", testConsole},
		{"kick-early", testKickEarly},
		{"kick-late", testKickLate},
		{"kick-waiting", testKickWaiting},
		{"kick-twice", testKickTwice},
		{"kick-at-device", testKickAtDevice},
		{"halted", testHalted},
		{"halted-not", testNotHalted},
		{"interrupt", testInterrupt},
		{"interrupt-pending", testInterruptPending},
		{"timer", testTimer},
		{"time", testTime},
		{"post-order", testPostOrder},
		{"post-wakes", testPostWakes},
		{"post-write-is-seen", testPostWriteIsSeen},
		{"drain", testDrain},
		{"save-load", testSaveLoad},
		{"save-waiting", testSaveWaiting},
		{"load-refuses", testLoadRefuses},
		{"seal-while-paused", testSeal},
		{"seal-while-writing", testSealWhileWriting},
		{"fork", testFork},
		{"no-memory", testNoMemory},
		{"second-vcpu", testSecondVCPU},
		{"config", testConfig},
	}
	for _, test := range slices.Concat(tests, parallelTests) {
		t.Run(test.name, func(t *testing.T) {
			e := newEngine()
			spec, ok := isas[e.ISA()]
			if !ok {
				t.Skipf("the suite has no programs for %s", e.ISA())
			}
			test.fn(t, &fixture{t: t, engine: e, isa: spec, started: time.Now()})
		})
	}
}

type test struct {
	name string
	fn   func(*testing.T, *fixture)
}

// fixture is one machine under test and what it is made of.
type fixture struct {
	t       *testing.T
	engine  engine.Engine
	isa     isa
	started time.Time

	arena   *page.Arena
	overlay page.Top
	memory  *memory.Space
	device  *device
	console strings.Builder
	quota   int // of pages; zero is no bound
	vcpus   int // zero is one
	vm      engine.VM
}

// boot makes a machine that starts the program.
func (f *fixture) boot(program string) {
	f.t.Helper()
	if why, ok := f.isa.lacks[program]; ok {
		f.t.Skip(why)
	}
	code, ok := f.isa.programs[program]
	if !ok {
		f.t.Fatalf("no program %q for this instruction set", program)
	}
	var err error
	if f.arena, err = f.engine.NewArena(); err != nil {
		f.t.Fatal(err)
	}
	stack := page.NewStack(ramPages)
	defer stack.Release()
	f.newMemory(stack)
	if err := f.memory.Write(f.isa.ramBase+f.isa.entry, code); err != nil {
		f.t.Fatal(err)
	}
	f.make(&engine.Boot{Entry: f.isa.ramBase + f.isa.entry, Params: f.isa.ramBase + dataOffset}, nil)
}

// newMemory gives the next machine memory over a stack.
func (f *fixture) newMemory(stack *page.Stack) {
	f.t.Helper()
	var err error
	if f.overlay, err = f.engine.NewMemory(stack, f.arena, f.quota); err != nil {
		if errors.Is(err, engine.ErrNoQuota) {
			f.t.Skip(err)
		}
		f.t.Fatal(err)
	}
	f.memory, err = memory.NewSpace(memory.Slot{Base: f.isa.ramBase, Pages: f.overlay})
	if err != nil {
		f.t.Fatal(err)
	}
	overlay := f.overlay
	f.t.Cleanup(overlay.Close)
}

// make creates the VM over the present memory.
func (f *fixture) make(boot *engine.Boot, saved *state.Reader) {
	f.t.Helper()
	f.device = &device{}
	b := new(bus.Bus)
	if err := b.Map(f.isa.deviceBase, deviceSize, f.device); err != nil {
		f.t.Fatal(err)
	}
	vm, err := f.engine.NewVM(engine.Config{
		Memory:  f.memory,
		Bus:     b,
		VCPUs:   max(f.vcpus, 1),
		Clock:   func() time.Duration { return time.Since(f.started) },
		Console: &f.console,
		Boot:    boot,
		State:   saved,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.vm = vm
	f.device.line = vm.Line(f.isa.interrupt)
	f.t.Cleanup(func() { vm.Close() })
}

// run runs vCPU 0 until it returns for another reason than a kick.
func (f *fixture) run(want engine.Exit) {
	f.t.Helper()
	for {
		switch exit, err := f.vm.VCPUs()[0].Run(); {
		case err != nil:
			f.t.Fatalf("Run: %v", err)
		case exit == want:
			return
		case exit != engine.Kicked:
			f.t.Fatalf("Run returned %v, want %v", exit, want)
		}
	}
}

// start runs vCPU 0 on its own goroutine. The channel gets its exit.
func (f *fixture) start() <-chan engine.Exit {
	done := make(chan engine.Exit, 1)
	go func() {
		exit, err := f.vm.VCPUs()[0].Run()
		if err != nil {
			f.t.Errorf("Run: %v", err)
		}
		done <- exit
	}()
	return done
}

// begin is start for "count", when it has counted.
func (f *fixture) begin() <-chan engine.Exit {
	f.t.Helper()
	signals := f.device.signals()
	done := f.start()
	await(f.t, signals)
	return done
}

// await fails the test if nothing comes: the bound is for hangs only.
func await[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("nothing happened for 30 seconds")
		panic("unreachable")
	}
}

func (f *fixture) word(offset uint64) uint64 {
	f.t.Helper()
	v, err := f.memory.Uint64(f.isa.ramBase + dataOffset + offset)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *fixture) save() []byte {
	var w state.Writer
	f.vm.Drain()
	f.vm.Save(&w)
	return w.Bytes()
}

func (f *fixture) parse(b []byte) *state.Reader {
	f.t.Helper()
	r, err := state.Parse(b)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// device records accesses, and drives the interrupt line.
type device struct {
	line interface{ Set(bool) }

	mu     sync.Mutex
	writes []access
	notify chan uint64 // gets what is written to regSignal, if not nil
	onRead func()      // called for each read, if not nil
}

type access struct {
	offset uint64
	width  int
	value  uint64
}

// Registers of the device.
const (
	regSignal = 0x00 // write: passed to the test
	regLower  = 0x08 // write: lowers the interrupt line
	regRaise  = 0x10 // write: raises it
	regRead   = 0x40 // read: a pattern that depends on offset and width
)

func (d *device) Read(offset uint64, width int) uint64 {
	if d.onRead != nil {
		d.onRead()
	}
	return (0x8182838485868788 + offset) & (1<<(8*width-1)<<1 - 1)
}

func (d *device) Write(offset uint64, width int, value uint64) {
	d.mu.Lock()
	d.writes = append(d.writes, access{offset, width, value})
	notify := d.notify
	d.mu.Unlock()
	switch offset {
	case regLower:
		d.line.Set(false)
	case regRaise:
		d.line.Set(true)
	case regSignal:
		if notify != nil {
			notify <- value
		}
	}
}

// signals has the values that the guest writes to regSignal sent to the
// returned channel.
func (d *device) signals() <-chan uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = make(chan uint64, 64)
	return d.notify
}

func (a access) String() string {
	return fmt.Sprintf("%d bytes at %#x: %#x", a.width, a.offset, a.value)
}

func (f *fixture) emptyBus() *bus.Bus { return new(bus.Bus) }

func leU64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// rechecksum makes the checksum of an altered state right.
func rechecksum(b []byte) []byte {
	body := b[:len(b)-4]
	return binary.LittleEndian.AppendUint32(body, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}
