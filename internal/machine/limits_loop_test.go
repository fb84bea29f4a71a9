package machine_test

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

// The two disks of the machine below feed each other. Each has a queue of large requests, of which
// there are always more than it does at a time; and every so many requests, in a turn, there is
// one that reads a sector to where the other's ring is, and to its own header. So the other disk
// gets a turn's worth of requests, and the next such request reads the next sector. It does not end.
const (
	loopSize    = 128 // of a queue
	loopTurn    = 16
	loopAhead   = 4 * loopTurn // requests that there are at first
	loopSectors = 1 << 16 / loopTurn

	// Offsets from where a disk has its descriptors.
	loopAvail  = 0x1000
	loopUsed   = 0x2000
	loopHeader = 0x3000 // of the request that reads a sector,
	loopOther  = 0x3800 // and of all others
	loopStatus = 0x3c00
	loopRing   = 4 + 2*loopSize // bytes of the ring of available requests
	loopDisk   = 0x1_0000       // from one disk's to the other's
	loopData   = rings + 0x4_0000
	loopLarge  = 64 << 10 // bytes
)

// loopSector returns sector n: a ring for the other disk, and the header of the next request.
func loopSector(n int) []byte {
	b := binary.LittleEndian.AppendUint16(nil, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(loopAhead+(n+1)*loopTurn))
	for i := range loopSize {
		head := uint16(0)
		if i%loopTurn == loopTurn-1 {
			head = 3
		}
		b = binary.LittleEndian.AppendUint16(b, head)
	}
	b = binary.LittleEndian.AppendUint64(b, kindIn)
	b = binary.LittleEndian.AppendUint64(b, uint64(n+1)%loopSectors)
	return append(b, make([]byte, 512-len(b))...)
}

// loop has the disks begin, and sleeps.
func loop(a *rv.Asm) {
	m, err := board.For("riscv64")
	if err != nil {
		panic(err)
	}
	rootBase, _ := m.Slot(board.SlotRoot)
	disk := func(slot int, at, other uint64) {
		startDiskOf(a, slot, at, loopSize, loopAvail, loopUsed)
		const next, write = 1, 2
		for i, d := range [][3]uint64{
			{at + loopOther, 16, next | 1<<16}, {loopData, loopLarge, next | write | 2<<16}, {at + loopStatus, 1, write},
			{at + loopHeader, 16, next | 4<<16}, {other + loopAvail, loopRing, next | write | 5<<16},
			{at + loopHeader, 512 - loopRing, next | write | 6<<16}, {at + loopStatus, 1, write},
		} {
			a.LI(machinetest.T0, d[0])
			a.S(rv.SD, machinetest.T0, int32(16*i), s3)
			a.LI(machinetest.T0, d[1]|d[2]<<32)
			a.S(rv.SD, machinetest.T0, int32(16*i+8), s3)
		}
		a.LI(t2, at+loopAvail)
		for i, first := 0, loopSector(-1); i < loopRing; i += 2 {
			a.LI(machinetest.T0, uint64(binary.LittleEndian.Uint16(first[i:])))
			a.S(rv.SH, machinetest.T0, int32(i), t2)
		}
	}
	disk(board.SlotRoot, rings, rings+loopDisk)
	disk(board.SlotScratch, rings+loopDisk, rings)
	a.LI(t2, rootBase)
	a.S(rv.SW, machinetest.Zero, 0x50, t2)
	a.S(rv.SW, machinetest.Zero, 0x50, s2)
	a.Label("sleep")
	a.Op(rv.WFI)
	a.J(machinetest.Zero, "sleep")
}

// TestDevicesAreInTheCPULimit: a guest that sleeps, and whose disks have work for ever, uses
// no more of the host than its limit says.
func TestDevicesAreInTheCPULimit(t *testing.T) {
	const (
		limit    = .1
		attempts = 4 // the process has something else to do, too
		long     = 500 * time.Millisecond
	)
	l := newLab(t)
	cfg := l.config()
	contents := l.overlay(nil, loopSectors/8)
	defer contents.Close()
	for n := range loopSectors {
		p, _, err := contents.Write(page.Number(n / 8))
		if err != nil {
			t.Fatal(err)
		}
		copy(p[n%8*512:], loopSector(n))
	}
	disk := contents.Seal()
	defer disk.Release()
	cfg.Root = disk
	cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(disk, 0)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(loop)}
	cfg.Limits.CPU = limit
	m := l.make(cfg)
	ram := cfg.Memory.(*page.Overlay)
	turn := func() uint64 { return word(ram, rings+loopHeader+8) }
	for n := 1; ; n++ {
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		before, began := processTime(t), time.Now()
		time.Sleep(long)
		used, passed := processTime(t)-before, time.Since(began)
		m.Pause()
		was := turn()
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(long / 10)
		m.Pause()
		if turn() == was {
			t.Fatalf("the disk has stopped at sector %d", was)
		}
		share := fmt.Sprintf("a machine with a tenth of a processor used %.2f", used.Seconds()/passed.Seconds())
		if used < time.Duration(3*limit*float64(passed)) {
			t.Log(share)
			return
		}
		if n == attempts {
			t.Fatal(share)
		}
	}
}

// processTime returns the processor time that this process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
