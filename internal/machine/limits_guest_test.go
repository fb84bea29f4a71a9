package machine_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

const (
	t2 = 7
	s2 = 18 // the scratch disk's registers
	s3 = 19 // the rings
	s4 = 20 // requests made
	s5 = 21 // the sector of the next one

	// Where the programs below have rings and buffers, as offsets from rings. Lists of
	// descriptors are three long: header, data, status.
	rings      = machinetest.Counter + 0x4_0000
	ringAvail  = 0x100
	ringUsed   = 0x200
	diskHeader = 0x300
	diskExtent = 0x380
	diskStatus = 0x3c0
	diskData   = 0x1000

	kindIn, kindOut, kindDiscard = 0, 1, 11
	diskOK, diskError            = 0, 1
)

// startDisk sets up the scratch disk's queue.
func startDisk(a *rv.Asm) {
	startDiskOf(a, board.SlotScratch, rings, 8, ringAvail, ringUsed)
	a.LI(machinetest.T0, diskData)
	a.R(rv.ADD, machinetest.T0, machinetest.T0, s3)
	a.S(rv.SD, s3, 0, machinetest.T0) // so that it is not all zeros
}

// startDiskOf sets up a disk's queue with so many descriptors at desc, and rings at offsets from
// there (virtio 3.1.1, 4.2.3).
func startDiskOf(a *rv.Asm, slot int, desc, size, avail, used uint64) {
	m, err := board.For("riscv64")
	if err != nil {
		panic(err)
	}
	base, _ := m.Slot(slot)
	a.LI(s2, base)
	a.LI(s3, desc)
	a.LI(s4, 0)
	set := func(register int32, v uint64) {
		a.LI(machinetest.T0, v)
		a.S(rv.SW, machinetest.T0, register, s2)
	}
	const version1 = 1 // of the features from bit 32 on
	set(0x70, 0)
	set(0x70, 1|2)
	set(0x24, 1)
	set(0x20, version1)
	set(0x70, 1|2|8)
	set(0x30, 0)
	set(0x38, size)
	for register, gpa := range map[int32]uint64{0x80: desc, 0x90: desc + avail, 0xa0: desc + used} {
		set(register, gpa&0xffff_ffff)
		set(register+4, gpa>>32)
	}
	set(0x44, 1)
	set(0x70, 1|2|8|4)
}

// request makes a request at sector s5 and leaves its status in T1. label is unique.
func request(a *rv.Asm, label string, kind, data, size, dataFlags uint64) {
	const next, write = 1, 2
	for i, d := range [][3]uint64{
		{rings + diskHeader, 16, next | 1<<16}, {rings + data, size, dataFlags | next | 2<<16}, {rings + diskStatus, 1, write},
	} {
		a.LI(machinetest.T0, d[0])
		a.S(rv.SD, machinetest.T0, int32(16*i), s3)
		a.LI(machinetest.T0, d[1]|d[2]<<32)
		a.S(rv.SD, machinetest.T0, int32(16*i+8), s3)
	}
	a.LI(machinetest.T0, kind)
	a.S(rv.SD, machinetest.T0, diskHeader, s3)
	a.S(rv.SD, s5, diskHeader+8, s3)
	a.I(rv.ADDI, s4, s4, 1)
	a.S(rv.SH, s4, ringAvail+2, s3) // the entry is list 0, as ever
	a.S(rv.SW, machinetest.Zero, 0x50, s2)
	a.LI(t2, 0xffff)
	a.R(rv.AND, t2, t2, s4)
	a.Label(label)
	a.I(rv.LHU, machinetest.T1, s3, ringUsed+2)
	a.B(rv.BNE, machinetest.T1, t2, label)
	a.I(rv.LBU, machinetest.T1, s3, diskStatus)
}

// Where fill leaves what came of its requests, from Counter on.
const (
	fillWritten = 0x10 // pages that were written
	fillWrite   = 0x18 // status of the write behind them,
	fillRead    = 0x20 // of a read of the first page,
	fillDiscard = 0x28 // of its discard,
	fillAgain   = 0x30 // and of the write again
	fillDone    = 0x38
)

// fill writes pages to the disk until that fails, and finds out what can be done then.
func fill(a *rv.Asm) {
	const write = 2
	startDisk(a)
	a.LI(s5, 0)
	a.Label("fill")
	request(a, "filling", kindOut, diskData, page.Size, 0)
	a.B(rv.BNE, machinetest.T1, machinetest.Zero, "full")
	a.I(rv.ADDI, s5, s5, 8)
	a.J(machinetest.Zero, "fill")
	a.Label("full")
	a.I(rv.SRLI, machinetest.T0, s5, 3)
	a.S(rv.SD, machinetest.T0, fillWritten, machinetest.S0)
	a.S(rv.SD, machinetest.T1, fillWrite, machinetest.S0)
	a.R(rv.ADD, 22, s5, machinetest.Zero)
	a.LI(s5, 0)
	request(a, "reading", kindIn, diskData, page.Size, write)
	a.S(rv.SD, machinetest.T1, fillRead, machinetest.S0)
	a.LI(machinetest.T0, 8)
	a.S(rv.SD, machinetest.Zero, diskExtent, s3)
	a.S(rv.SD, machinetest.T0, diskExtent+8, s3)
	request(a, "discarding", kindDiscard, diskExtent, 16, 0)
	a.S(rv.SD, machinetest.T1, fillDiscard, machinetest.S0)
	a.R(rv.ADD, s5, 22, machinetest.Zero)
	request(a, "again", kindOut, diskData, page.Size, 0)
	a.S(rv.SD, machinetest.T1, fillAgain, machinetest.S0)
	a.LI(machinetest.T0, 1)
	a.S(rv.SD, machinetest.T0, fillDone, machinetest.S0)
	machinetest.Count(a)
}

// stream writes the same page without end, and counts.
func stream(a *rv.Asm) {
	startDisk(a)
	a.LI(s5, 0)
	a.Label("stream")
	request(a, "streaming", kindOut, diskData, page.Size, 0)
	a.S(rv.SD, s4, 0, machinetest.S0)
	a.B(rv.BEQ, machinetest.T1, machinetest.Zero, "stream")
	machinetest.PowerOff(a, board.PowerOff)
}

// A disk that is full is an error of the disk: the machine goes on, what is there can be
// read, and what is discarded makes room.
func TestDiskBytes(t *testing.T) {
	for bytes, pages := range map[int64]uint64{0: 16, 20000: 5, 1: 1} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			l := newLab(t)
			cfg := l.config()
			cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
			cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(fill)}
			cfg.Limits.DiskBytes = bytes
			m := l.make(cfg)
			ram := cfg.Memory.(*page.Overlay)
			if err := m.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the disk is full", func() bool { return word(ram, machinetest.Counter+fillDone) == 1 })
			m.Pause()
			want := map[uint64]uint64{fillWritten: pages, fillWrite: diskError, fillRead: diskOK, fillDiscard: diskOK, fillAgain: diskOK}
			if bytes == 0 {
				want[fillAgain] = diskError // it is beyond the end
			}
			for at, v := range want {
				if got := word(ram, machinetest.Counter+at); got != v {
					t.Errorf("word %#x is %d, want %d", at, got, v)
				}
			}
		})
	}
}

// A machine that is limited in what it writes waits for that, and loses nothing when it is
// branched meanwhile: the branch, which is not limited, does at once what was left.
func TestDiskRate(t *testing.T) {
	const perSecond = 1 << 20
	l := newLab(t)
	cfg := l.config()
	cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(stream)}
	cfg.Limits.DiskRate = perSecond
	m := l.make(cfg)
	began := time.Now()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	f, err := m.Branch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Memory.Release)
	t.Cleanup(f.Scratch.Release)
	took := time.Since(began)
	written := frozenCount(f)
	if most := uint64((took.Seconds()+.3)*perSecond) / page.Size; written == 0 || written > most {
		t.Errorf("%d pages were written in %v, want at most %d", written, took, most)
	}
	ram := cfg.Memory.(*page.Overlay)
	eventually(t, "the source goes on", func() bool { return word(ram, machinetest.Counter) > written })

	child, childRAM := l.restore(f, 1)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the branch goes on", func() bool { return word(childRAM, machinetest.Counter) > written+10*perSecond/page.Size })
	for _, m := range []*machine.Machine{m, child} {
		m.Pause()
	}
	index := func(o *page.Overlay) uint16 {
		const off = rings + ringUsed - board.RAMBase
		return binary.LittleEndian.Uint16(o.Read(page.Number(off / page.Size))[off%page.Size+2:])
	}
	for name, o := range map[string]*page.Overlay{"source": ram, "branch": childRAM} {
		if done, counted := index(o), uint16(word(o, machinetest.Counter)); done-counted > 1 {
			t.Errorf("%s: the disk has done %d requests, the guest counted %d", name, done, counted)
		}
	}
}

func TestImpossibleLimitsAreRefused(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(machinetest.Count)}
	cfg.Limits.CPU = -1
	if _, err := machine.New(cfg); err == nil {
		t.Error("a machine with less than no time")
	}
}

// A machine with a limit on its processors' time gets that, and what it does not use the
// others have.
func TestCPULimit(t *testing.T) {
	var machines []*machine.Machine
	for _, limits := range []machine.Limits{{}, {CPU: .2, CPUWeight: 1000}} {
		l := newLab(t)
		cfg := l.config()
		cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
		cfg.Boot, cfg.Limits = &machine.Boot{Kernel: machinetest.Kernel(machinetest.Count)}, limits
		machines = append(machines, l.make(cfg))
	}
	for _, m := range machines {
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(500 * time.Millisecond)
	free, bound := machines[0].Counters().Instructions, machines[1].Counters().Instructions
	// What the host takes away counts as used, so too little is no fault.
	if share := float64(bound) / float64(free); bound == 0 || share > .45 {
		t.Errorf("a machine with a fifth of a processor executed %.2f times what another one did", share)
	}
}
