//go:build linux && amd64

package jit

import (
	"sync/atomic"
	"unsafe"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Where machine code finds things.
const (
	offLoads   = int32(unsafe.Offsetof(Context{}.Loads))
	offStores  = int32(unsafe.Offsetof(Context{}.Stores))
	offNatives = int32(unsafe.Offsetof(Context{}.natives))
	offSpace   = int32(unsafe.Offsetof(Context{}.Space))
	offBase    = int32(unsafe.Offsetof(Context{}.base))
	offCode    = int32(unsafe.Offsetof(Context{}.code))
	offLeft    = int32(unsafe.Offsetof(Context{}.left))
	offPC      = int32(unsafe.Offsetof(Context{}.pc))
	offTarget  = int32(unsafe.Offsetof(Context{}.target))
	offExit    = int32(unsafe.Offsetof(Context{}.exit))
	offMXCSR   = int32(unsafe.Offsetof(Context{}.mxcsr))
	offFloat   = int32(unsafe.Offsetof(Context{}.float))
	offKept    = int32(unsafe.Offsetof(Context{}.kept))
	offZero    = int32(unsafe.Offsetof(Context{}.zero))
	offHart    = int32(unsafe.Offsetof(Context{}.hart))

	offMode   = unsafe.Offsetof(hart.Hart{}.Mode)
	offFCSR   = unsafe.Offsetof(hart.Hart{}.FCSR)
	offStatus = unsafe.Offsetof(hart.Hart{}.Status)

	offF        = int32(unsafe.Offsetof(hart.Hart{}.F))
	offReserved = int32(unsafe.Offsetof(hart.Hart{}.Reservation))
	offAt       = offReserved + int32(unsafe.Offsetof(hart.Reservation{}.At))
	offValue    = offReserved + int32(unsafe.Offsetof(hart.Reservation{}.Value))
	offWidth    = offReserved + int32(unsafe.Offsetof(hart.Reservation{}.Width))

	entryTag   = int32(unsafe.Offsetof(mmu.Entry[mmu.Host]{}.Tag))
	entryTo    = int32(unsafe.Offsetof(mmu.Entry[mmu.Host]{}.To))
	entrySize  = int32(unsafe.Sizeof(mmu.Entry[mmu.Host]{}))
	entryShift = 4
	bankMask   = (mmu.BankSize - 1) << entryShift
)

// The code assumes these.
var (
	_ [0]struct{} = [unsafe.Offsetof(hart.Hart{}.X)]struct{}{}
	_ [0]struct{} = [entrySize - 1<<entryShift]struct{}{}
)

// setSlot has links through the slot at an offset lead to the code at another.
func (a *arena) setSlot(slot, code uint32) {
	p := (*uint64)(unsafe.Pointer(&a.writable[slot]))
	atomic.StoreUint64(p, uint64(a.address(code)))
}

// addressOf returns where b lies.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
