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
// What was sealed need not stay in memory. Unseal moves the pages of layers back that
// nobody but the overlay has. A Replacement puts files in the place of layers that were
// written, or one layer in the place of several (Merge) that are not needed apart, whose
// hidden pages go then (Absorb); contents stay the same. Whether somebody has a layer
// is a matter of its reference count alone: the last reference is taken in one step, so
// nobody can get another.
//
// Invariants. Pages reachable from a Layer are never written again. A *Page
// handed out by a Stack or an Overlay stays valid while a reference to that
// Stack is held; its memory does not come from the Go heap. All sizes and
// indexes that come from files are checked before use. The one thing that
// checks cannot cover is a file that somebody truncates while it is mapped:
// touching what it lost is a bus error (see Stack.Intact).
//
// Lock order: Overlay.shape, then Overlay.mu, then Layer.mu and that of what a layer was
// sealed over (from upper layers to lower ones), then Arena.mu and that of the tally.
// Reference counts are atomic.
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
