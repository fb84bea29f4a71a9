//go:build linux && amd64

package kvm

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/state"
)

// The sections of a saved machine. Structures are as KVM has them, which is part of
// the kernel's stable interface.
const (
	vcpuVersion = 1
	irqKind     = "irq/pc"
	irqVersion  = 1
)

func vcpuKind(id int) string { return fmt.Sprintf("vcpu/amd64/%d", id) }

const (
	msrTSC         = 0x10
	msrTSCDeadline = 0x6e0
	// The MSRs of another hypervisor's interface, which guests here are not offered.
	hyperVFirst = 0x4000_0000
	hyperVLast  = 0x4000_01ff
	// timerCount is the register of a local APIC that counts down (AMD64 APM volume
	// 2, 16.4.1).
	timerCount = 0x390
)

// frozen is what passes with time in a machine that has not run yet since it was
// restored.
type frozen struct {
	clock uint64 // nanoseconds
	vcpus []frozenVCPU
}

// frozenVCPU is a vCPU's part of it. Its time stamp counter is not set before the first
// Run: setting it a second time within a second makes the kernel believe that the first
// was meant, and was late. The deadline of its timer is a value of the counter.
type frozenVCPU struct {
	tsc, deadline uint64
	count         [4]byte // of the local APIC's timer
}

// at returns where one of the MSRs is kept that are set with the clocks, or nil.
func (f *frozenVCPU) at(index uint32) *uint64 {
	switch index {
	case msrTSC:
		return &f.tsc
	case msrTSCDeadline:
		return &f.deadline
	}
	return nil
}

// registers are what a vCPU consists of besides its MSRs, in the order in which they
// are restored.
type registers struct {
	mpState uint32
	regs    regs
	sregs   sregs
	xsave   [4096]byte
	xcrs    [392]byte
	debug   [128]byte
	lapic   [1024]byte
	events  [64]byte
}

// part is a structure among a vCPU's registers.
type part struct {
	bytes    func(*registers) []byte
	get, set func(*vcpu, *registers) error
}

func partOf[T any](of func(*registers) *T, get, set request) part {
	return part{
		func(r *registers) []byte { return bytesOf(of(r)) },
		func(v *vcpu, r *registers) error { return give(v.fd, get, of(r)) },
		func(v *vcpu, r *registers) error { return give(v.fd, set, of(r)) },
	}
}

var parts = []part{
	partOf(func(r *registers) *uint32 { return &r.mpState }, getMPState, setMPState),
	partOf(func(r *registers) *regs { return &r.regs }, getRegs, setRegs),
	partOf(func(r *registers) *sregs { return &r.sregs }, getSRegs, setSRegs),
	partOf(func(r *registers) *[4096]byte { return &r.xsave }, getXSave, setXSave),
	partOf(func(r *registers) *[392]byte { return &r.xcrs }, getXCRs, setXCRs),
	partOf(func(r *registers) *[128]byte { return &r.debug }, getDebugRegs, setDebugRegs),
	partOf(func(r *registers) *[1024]byte { return &r.lapic }, getLAPIC, setLAPIC),
}

// events come after the MSRs.
var events = partOf(func(r *registers) *[64]byte { return &r.events }, getVCPUEvents, setVCPUEvents)

// stateMSRs returns the MSRs that make up a vCPU's state: those that the kernel lists,
// given /dev/kvm, and that such a vCPU has.
func (v *vcpu) stateMSRs(fd int) ([]uint32, error) {
	t := msrIndexes{n: maxMSRs}
	if err := give(fd, getMSRIndexList, &t); err != nil {
		return nil, fmt.Errorf("asking which MSRs there are: %w", err)
	}
	values, err := v.readMSRs(slices.DeleteFunc(t.indexes[:t.n], func(index uint32) bool {
		return index >= hyperVFirst && index <= hyperVLast
	}))
	if err != nil {
		return nil, fmt.Errorf("reading MSRs: %w", err)
	}
	indexes := make([]uint32, len(values))
	for i, x := range values {
		indexes[i] = x.index
	}
	return indexes, nil
}

// save appends a vCPU's section.
func (v *vcpu) save(w *state.Writer, indexes []uint32) error {
	e := w.Section(vcpuKind(v.id), vcpuVersion)
	var r registers
	for _, p := range append(slices.Clone(parts), events) {
		if err := p.get(v, &r); err != nil {
			return err
		}
	}
	values, err := v.readMSRs(indexes)
	if err != nil {
		return err
	}
	if f := v.vm.frozen.Load(); f != nil {
		own := &f.vcpus[v.id]
		copy(r.lapic[timerCount:], own.count[:])
		for i := range values {
			if kept := own.at(values[i].index); kept != nil {
				values[i].data = *kept
			}
		}
	}
	for _, p := range append(slices.Clone(parts), events) {
		e.Bytes(p.bytes(&r))
	}
	e.U32(uint32(len(values)))
	for _, x := range values {
		e.U32(x.index)
		e.U64(x.data)
	}
	return nil
}

// halted reports whether the vCPU, which is not in Run, does nothing until another one
// or a device that it does not listen to wants something of it.
func (v *vcpu) halted() (bool, error) {
	const uninitialized, initialized, waits = 1, 2, 3 // multiprocessing states
	const interruptible = 1 << 9                      // in RFLAGS
	var r registers
	if err := give(v.fd, getMPState, &r.mpState); err != nil {
		return false, err
	}
	if r.mpState != waits {
		return r.mpState == uninitialized || r.mpState == initialized, nil
	}
	err := give(v.fd, getRegs, &r.regs)
	return err == nil && r.regs.rflags&interruptible == 0, err
}

// readMSRs returns the values of MSRs, without those that this vCPU does not have.
func (v *vcpu) readMSRs(indexes []uint32) (values []msr, err error) {
	for len(indexes) > 0 {
		var t msrTable
		t.n = uint32(len(indexes))
		for i, index := range indexes {
			t.entries[i].index = index
		}
		n, err := count(v.fd, getMSRs, &t)
		if err != nil {
			return nil, err
		}
		values = append(values, t.entries[:n]...)
		indexes = indexes[min(n+1, len(indexes)):] // the one after them could not be read
	}
	return values, nil
}

// restore takes a vCPU's section. What the kernel refuses is no state of a vCPU.
func (v *vcpu) restore(r *state.Reader, f *frozenVCPU) error {
	d, err := r.Take(vcpuKind(v.id), vcpuVersion)
	if err != nil {
		return err
	}
	var x registers
	all := append(slices.Clone(parts), events)
	for _, p := range all {
		b, into := d.Bytes(), p.bytes(&x)
		if len(b) != len(into) {
			d.Fail("a structure has another size")
			return d.Done()
		}
		copy(into, b)
	}
	n := d.U32()
	if n > maxMSRs {
		d.Fail("too many MSRs")
		return d.Done()
	}
	var t msrTable
	for range n {
		x := msr{index: d.U32(), data: d.U64()}
		if kept := f.at(x.index); kept != nil {
			*kept = x.data
			continue
		}
		t.entries[t.n] = x
		t.n++
	}
	if err := d.Done(); err != nil {
		return err
	}
	copy(f.count[:], x.lapic[timerCount:])
	for _, p := range parts {
		if err := p.set(v, &x); err != nil {
			return refused(v.id, err)
		}
	}
	if n, err := count(v.fd, setMSRs, &t); err != nil || n != int(t.n) {
		if err == nil {
			err = fmt.Errorf("MSR %#x cannot be %#x", t.entries[n].index, t.entries[n].data)
		}
		return refused(v.id, err)
	}
	if err := events.set(v, &x); err != nil {
		return refused(v.id, err)
	}
	return nil
}

func refused(id int, err error) error {
	return fmt.Errorf("%w: the state of vCPU %d was refused: %w", state.ErrCorrupt, id, err)
}

// The interrupt controllers of the PC: two 8259 and the I/O APIC.
const irqChips = 3

// Save implements engine.VM.
func (m *vm) Save(w *state.Writer) {
	if err := m.save(w); err != nil {
		// All it asks for is there, and nothing runs.
		panic("BUG: saving a machine: " + err.Error())
	}
}

func (m *vm) save(w *state.Writer) error {
	for _, v := range m.vcpus {
		if err := v.save(w, m.msrs); err != nil {
			return err
		}
	}
	e := w.Section(irqKind, irqVersion)
	for i := range uint32(irqChips) {
		c := irqChip{chip: i}
		if err := give(m.fd, getIRQChip, &c); err != nil {
			return err
		}
		e.Bytes(c.state[:])
	}
	var pit [112]byte
	if err := give(m.fd, getPIT, &pit); err != nil {
		return err
	}
	for channel := range 3 {
		// When it was loaded by the host's clock; the kernel does not take it back.
		clear(pit[24*channel+16:][:8])
	}
	e.Bytes(pit[:])
	if f := m.frozen.Load(); f != nil {
		e.U64(f.clock)
		return nil
	}
	var clock clockData
	if err := give(m.fd, getClock, &clock); err != nil {
		return err
	}
	e.U64(clock.clock)
	return nil
}

// restore takes the sections of the machine.
func (m *vm) restore(r *state.Reader) error {
	f := &frozen{vcpus: make([]frozenVCPU, len(m.vcpus))}
	for i, v := range m.vcpus {
		if err := v.restore(r, &f.vcpus[i]); err != nil {
			return err
		}
	}
	d, err := r.Take(irqKind, irqVersion)
	if err != nil {
		return err
	}
	var chips [irqChips]irqChip
	var pit [112]byte
	for i := range chips {
		chips[i].chip = uint32(i)
		if copy(chips[i].state[:], d.Bytes()) != len(chips[i].state) {
			d.Fail("an interrupt controller has another size")
		}
	}
	if copy(pit[:], d.Bytes()) != len(pit) {
		d.Fail("the timer has another size")
	}
	f.clock = d.U64()
	if err := d.Done(); err != nil {
		return err
	}
	for i := range chips {
		if err := give(m.fd, setIRQChip, &chips[i]); err != nil {
			return fmt.Errorf("%w: an interrupt controller was refused: %w", state.ErrCorrupt, err)
		}
	}
	if err := give(m.fd, setPIT, &pit); err != nil {
		return fmt.Errorf("%w: the timer was refused: %w", state.ErrCorrupt, err)
	}
	m.frozen.Store(f)
	return nil
}

// start sets the machine's clocks by its time, before the first Run.
func (m *vm) start() error {
	m.startOnce.Do(func() { m.startErr = m.setClocks() })
	return m.startErr
}

// setClocks sets KVM's clock and the time stamp counters. Neither goes back behind
// what the guest has seen, should the host's clocks have drifted apart.
func (m *vm) setClocks() error {
	f := m.frozen.Swap(nil)
	if f == nil {
		f = &frozen{vcpus: make([]frozenVCPU, len(m.vcpus))}
	}
	now := uint64(m.clock())
	clock := clockData{clock: max(now, f.clock)}
	if err := give(m.fd, setClock, &clock); err != nil {
		return fmt.Errorf("setting the guest's clock: %w", err)
	}
	ticks, ok := scale(now, m.tscKHz, 1e6)
	if !ok {
		return fmt.Errorf("%w: the guest's time of %d ns is more than it can count", state.ErrCorrupt, now)
	}
	for i, v := range m.vcpus {
		t := msrTable{n: 1}
		t.entries[0] = msr{index: msrTSC, data: max(ticks, f.vcpus[i].tsc)}
		if deadline := f.vcpus[i].deadline; deadline != 0 {
			t.entries[1] = msr{index: msrTSCDeadline, data: deadline}
			t.n = 2
		}
		if n, err := count(v.fd, setMSRs, &t); err != nil || n != int(t.n) {
			return fmt.Errorf("setting the time stamp counter of vCPU %d: %d of %d set: %w", i, n, t.n, err)
		}
	}
	return nil
}

// scale returns x times a by b, if that is a number.
func scale(x, a, b uint64) (uint64, bool) {
	high, low := bits.Mul64(x, a)
	if high >= b {
		return 0, false
	}
	q, _ := bits.Div64(high, low, b)
	return q, true
}

// mostDrift is how far the time stamp counter and the host's clock may drift apart, as a
// part of the guest's time.
const mostDrift = 1000

// Time implements engine.VM. A guest can set its counter; then the counter does not tell
// its time.
func (m *vm) Time() time.Duration {
	tsc := uint64(0)
	if f := m.frozen.Load(); f != nil {
		tsc = f.vcpus[0].tsc
	} else if values, err := m.vcpus[0].readMSRs([]uint32{msrTSC}); err == nil && len(values) == 1 {
		tsc = values[0].data
	}
	clock := m.clock()
	ns, ok := scale(tsc, 1e6, m.tscKHz)
	if drift := time.Duration(ns) - clock; !ok || drift.Abs() > clock/mostDrift+time.Second {
		return clock
	}
	return time.Duration(ns)
}

// enter puts the first vCPU at the start of a kernel.
func (v *vcpu) enter(b *engine.Boot) error {
	var s sregs
	if err := give(v.fd, getSRegs, &s); err != nil {
		return err
	}
	code := segment{limit: 0xffff_ffff, selector: codeSelector, kind: 11, present: 1, s: 1, l: 1, g: 1}
	data := segment{limit: 0xffff_ffff, selector: dataSelector, kind: 3, present: 1, s: 1, db: 1, g: 1}
	s.cs, s.ds, s.es, s.fs, s.gs, s.ss = code, data, data, data, data, data
	s.gdt = descriptorTable{base: gdtBase, limit: dataSelector + 7}
	s.cr0, s.cr3, s.cr4, s.efer = cr0Protected|cr0Paging, pml4Base, cr4PAE, eferLong|eferLongActive
	if err := give(v.fd, setSRegs, &s); err != nil {
		return err
	}
	r := regs{rip: b.Entry, rsi: b.Params, rsp: stackTop, rflags: flagsFixed}
	return give(v.fd, setRegs, &r)
}

const (
	cr0Protected   = 1
	cr0Paging      = 1 << 31
	cr4PAE         = 1 << 5
	eferLong       = 1 << 8
	eferLongActive = 1 << 10
	flagsFixed     = 1 << 1
	stackTop       = 0x8ff0
)
