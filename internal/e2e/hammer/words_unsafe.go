//go:build linux

package main

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wordAt returns the aligned word at an offset of mem.
func wordAt(mem []byte, offset int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[offset]))
}

// Operations of futex, with FUTEX_PRIVATE_FLAG.
const (
	futexWait = 128
	futexWake = 129
)

// futex sleeps while *word is v, or wakes v threads. It may return for no reason.
func futex(word *atomic.Uint32, op, v uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), uintptr(op), uintptr(v), 0, 0, 0)
}
