//go:build linux && amd64

package kvm_test

import (
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/kvm"
	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/state"
)

const (
	benchDevice = 0xd000_0000
	benchPages  = 256 << 20 / page.Size
)

// storeForEver is a program, for address 0, that stores to the device again and again.
var storeForEver = []byte{
	0xbb, 0, 0, 0, 0xd0, // mov ebx, benchDevice
	0x89, 0x03, // mov [rbx], eax
	0xeb, 0xfc, // jmp to the store
}

// kicker is a device that kicks the vCPU which accesses it.
type kicker struct {
	vm     engine.VM
	kicked time.Time
}

func (k *kicker) Read(uint64, int) uint64 { return 0 }
func (k *kicker) Write(uint64, int, uint64) {
	k.kicked = time.Now()
	k.vm.VCPUs()[0].Kick()
}

// bench makes machines of one memory.
type bench struct {
	b      *testing.B
	engine *kvm.Engine
	arena  *page.Arena
}

// run makes a machine that is booted, or of a state, and runs it until it is at the
// device. It returns when it was and the machine's memory; close ends it.
func (x *bench) run(stack *page.Stack, saved []byte, lap func(part string)) (m page.Top, vm engine.VM) {
	b := x.b
	m, err := x.engine.NewMemory(stack, x.arena, 0)
	if err != nil {
		b.Fatal(err)
	}
	lap("map")
	space, err := memory.NewSpace(memory.Slot{Pages: m})
	if err != nil {
		b.Fatal(err)
	}
	k := new(kicker)
	devices := new(bus.Bus)
	if err := devices.Map(benchDevice, page.Size, k); err != nil {
		b.Fatal(err)
	}
	cfg := engine.Config{Memory: space, Bus: devices, VCPUs: 1, Clock: func() time.Duration { return time.Minute }}
	if saved == nil {
		cfg.Boot = &engine.Boot{}
		if err := space.Write(0, storeForEver); err != nil {
			b.Fatal(err)
		}
	} else if cfg.State, err = state.Parse(saved); err != nil {
		b.Fatal(err)
	}
	if vm, err = x.engine.NewVM(cfg); err != nil {
		b.Fatal(err)
	}
	k.vm = vm
	lap("make")
	if _, err := vm.VCPUs()[0].Run(); err != nil {
		b.Fatal(err)
	}
	if k.kicked.IsZero() {
		b.Fatal("the guest was not at the device")
	}
	lap("run")
	return m, vm
}

// BenchmarkRestore restores a machine of 256 MiB, a third of which is in a hundred
// stretches of a file, and runs it to the first instruction that shows outside.
func BenchmarkRestore(b *testing.B) {
	hosttest.Need(b)
	e, err := kvm.New()
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	x := &bench{b: b, engine: e}
	if x.arena, err = e.NewArena(); err != nil {
		b.Fatal(err)
	}
	empty := page.NewStack(benchPages)
	m, vm := x.run(empty, nil, func(string) {})
	for n := page.Number(0); n < benchPages; n++ {
		if n%(benchPages/100) < benchPages/300 {
			p, _, _ := m.Write(n)
			p[page.Size-1]++
		}
	}
	var w state.Writer
	vm.Drain()
	vm.Save(&w)
	stack := m.Seal()
	vm.Close()
	m.Close()
	empty.Release()
	defer stack.Release()

	parts := map[string]time.Duration{}
	for b.Loop() {
		last := time.Now()
		m, vm := x.run(stack, w.Bytes(), func(part string) {
			now := time.Now()
			parts[part] += now.Sub(last)
			last = now
		})
		vm.Close()
		m.Close()
		parts["close"] += time.Since(last)
	}
	for part, d := range parts {
		b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), part+"-ns/op")
	}
}
