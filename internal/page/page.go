// Package page is the layered store of 4 KiB pages behind both guest RAM and
// guest disks.
//
// Three things exist, and a page is always in exactly one of the first two:
//
//   - A Layer is immutable: a set of numbered pages, either sealed in memory or
//     mapped read-only from a layer file. A page that became all zeros is
//     recorded as a hole, not stored.
//   - An Overlay is the writable top that belongs to one machine. It holds the
//     pages which that machine changed and nothing else.
//   - A Stack is an immutable flattened view of a chain of layers. Looking a
//     page up costs two array accesses, however many layers the chain has.
//
// Sealing an overlay moves its pages, by pointer, into a new layer; forking is
// a new empty overlay over a stack. Neither copies page contents.
//
// Invariants. Pages reachable from a Layer are never written again. A *Page
// handed out by a Stack or an Overlay stays valid while a reference to that
// Stack is held; its memory does not come from the Go heap. All sizes and
// indexes that come from files are checked before use. The one thing that
// checks cannot cover is a file that somebody truncates while it is mapped:
// touching what it lost is a bus error (see Stack.Intact).
//
// Lock order: Overlay.mu, then Arena.mu. Reference counts are atomic.
package page

// Size is the size of a page in bytes, and Shift its binary logarithm.
const (
	Size  = 4096
	Shift = 12
)

// Page is the contents of one page.
type Page = [Size]byte

// Number is the index of a page within a guest RAM slot or a disk.
type Number = uint32

// zero is what an absent page reads as. It is mapped read-only, so that a
// stray write faults instead of corrupting every machine.
var zero = mustMapZero()

// Zero returns the shared all-zero page. It must not be written.
func Zero() *Page { return zero }

// IsZero reports whether every byte of p is zero.
func IsZero(p *Page) bool { return *p == Page{} }
