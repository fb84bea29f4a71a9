package memory

import (
	"unsafe"

	"github.com/forkd-dev/forkd/internal/page"
)

// word returns the value of p at the offset of gpa, which must be aligned.
// Guests are little-endian, and so are the hosts that this is built for. The
// compiler makes one access of it, which a copy of bytes need not be.
func word[T uint16 | uint32 | uint64](p *page.Page, gpa uint64) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), gpa&(page.Size-1)))
}
