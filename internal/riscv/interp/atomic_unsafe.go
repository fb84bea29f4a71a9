package interp

import (
	"unsafe"

	"github.com/forkd-dev/forkd/internal/page"
)

// word32 and word64 return an aligned word of guest memory for atomic operations.

func word32(p *page.Page, a uint64) *uint32 {
	return (*uint32)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask)))
}

func word64(p *page.Page, a uint64) *uint64 {
	return (*uint64)(unsafe.Add(unsafe.Pointer(p), uintptr(a&offsetMask)))
}
