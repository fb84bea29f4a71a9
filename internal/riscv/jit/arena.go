//go:build linux && amd64

package jit

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/riscv/jit/amd64"
)

const minArena = 1 << 20

// arena is memory for code, mapped once for writing and once for execution. It
// begins with the code that all regions share.
//
// Three parts of it grow side by side. Code that is executed all the time takes somewhat
// more than half of what is translated; what is seldom used, the returns to Go and their
// records, lies elsewhere, and so do the slots of links. What is executed one after
// the other is thus close together, on fewer lines and pages of the host.
type arena struct {
	number uint64 // no other one of the process has it
	*mapping
	holders  atomic.Int64 // the cache, and contexts that execute in it
	parallel bool

	used  int // end of the code, in bytes from the start; guarded by Cache.mu
	cold  int // end of what is seldom used; guarded by Cache.mu
	slots int // end of the slots; guarded by Cache.mu

	start uintptr // enters native code
	leave uintptr // returns to Go, with the site in ECX
	miss  uintptr // returns to Go, with the offset to go on at, in the page that the context has, in RCX
}

// arenas counts those that were made.
var arenas atomic.Uint64

func newArena(size int, parallel bool) (*arena, error) {
	fd, err := unix.MemfdCreate("forkd-code", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		// The flag is newer than some kernels.
		fd, err = unix.MemfdCreate("forkd-code", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	w, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	x, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED)
	if err != nil {
		unix.Munmap(w)
		return nil, fmt.Errorf("mmap: %w", err)
	}
	a := &arena{number: arenas.Add(1), mapping: &mapping{writable: w, executable: x}, parallel: parallel, cold: coldStart(size), slots: slotStart(size)}
	a.prologue()
	a.holders.Store(1)
	// For holders that were forgotten rather than put to rest.
	runtime.AddCleanup(a, (*mapping).unmap, a.mapping)
	return a, nil
}

// mapping is an arena's memory.
type mapping struct {
	writable, executable []byte
	gone                 atomic.Bool
}

func (m *mapping) unmap() {
	if !m.gone.Swap(true) {
		unix.Munmap(m.writable)
		unix.Munmap(m.executable)
	}
}

// hold has the arena stay, unless it has gone already.
func (a *arena) hold() bool {
	for {
		n := a.holders.Load()
		if n == 0 {
			return false
		}
		if a.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release ends a hold; with the last the memory goes, and does not wait until the garbage
// collector, which knows nothing of it, sees fit.
func (a *arena) release() {
	if a.holders.Add(-1) == 0 {
		a.unmap()
	}
}

// coldStart and slotStart are where the parts of an arena begin, beside the first.
func coldStart(size int) int { return size / 16 * 9 &^ (lineSize - 1) }
func slotStart(size int) int { return size / 32 * 31 &^ (lineSize - 1) }

// parts is how much of each part of the arena is in use.
func (a *arena) parts() [3]int {
	size := len(a.writable)
	return [3]int{a.used, a.cold - coldStart(size), a.slots - slotStart(size)}
}

// bytes is how much of the arena is in use.
func (a *arena) bytes() int {
	p := a.parts()
	return p[0] + p[1] + p[2]
}

// share is how much of the arena has come into use since parts was before. It is full when
// one of its parts is, so what counts is the part that has filled most.
func (a *arena) share(before [3]int) (share float64) {
	size := len(a.writable)
	for i, room := range [3]int{coldStart(size), slotStart(size) - coldStart(size), size - slotStart(size)} {
		share = max(share, float64(a.parts()[i]-before[i])/float64(room))
	}
	return share
}

// address returns where the code at an offset runs.
func (a *arena) address(off uint32) uintptr { return addressOf(a.executable) + uintptr(off) }

// free returns the memory for the next region, and next where it will run.
func (a *arena) free() []byte  { return a.writable[a.used:a.used:len(a.writable)] }
func (a *arena) next() uintptr { return a.address(uint32(a.used)) }

// prologue emits what regions share. A table's zero leads to offset zero.
func (a *arena) prologue() {
	var t amd64.Asm
	t.Reset(a.free(), a.next())
	miss, leave, start := t.NewLabel(), t.NewLabel(), t.NewLabel()

	t.Bind(miss)
	t.ALURM(amd64.ADD, amd64.W64, amd64.RCX, amd64.At(cx, offBase))
	t.MovMR(amd64.W64, amd64.At(cx, offPC), amd64.RCX)
	t.MovRI(amd64.RCX, 0)

	t.Bind(leave)
	for r, h := range pinned {
		if isPinned(uint8(r)) {
			t.MovMR(amd64.W64, x(uint8(r)), h)
		}
	}
	t.MovMR(amd64.W32, amd64.At(cx, offExit), amd64.RCX)
	t.MovMR(amd64.W64, amd64.At(cx, offLeft), nr)
	t.Stmxcsr(amd64.At(cx, offMXCSR))
	t.Ret()

	t.Bind(start)
	t.MovRM(amd64.W64, hp, amd64.At(cx, offHart))
	t.ALURI(amd64.ADD, amd64.W64, hp, bias)
	t.Ldmxcsr(amd64.At(cx, offMXCSR))
	t.MovRM(amd64.W64, nr, amd64.At(cx, offLeft))
	for r, h := range pinned {
		if isPinned(uint8(r)) {
			t.MovRM(amd64.W64, h, x(uint8(r)))
		}
	}
	t.MovRM(amd64.W64, gp, amd64.At(cx, offKept))
	t.JmpM(amd64.At(cx, offTarget))

	if err := t.Finish(); err != nil || t.Overflow() {
		panic("BUG: the shared code does not fit its arena")
	}
	a.miss = a.address(uint32(t.Offset(miss)))
	a.leave = a.address(uint32(t.Offset(leave)))
	a.start = a.address(uint32(t.Offset(start)))
	a.used = align(t.Len(), codeAlign)
}
