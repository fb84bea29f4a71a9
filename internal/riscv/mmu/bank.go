package mmu

const (
	// pageMask selects the part of an address above the page offset.
	pageMask = ^uint64(pageSize - 1)
	pageSize = 4096

	// valid marks the tag of an entry in use, so that a cleared bank matches
	// nothing. It lies in the page offset, above the ASID.
	valid = 1 << asidBits

	// BankSize is the number of entries of a bank.
	BankSize = 2048
)

// Entry maps one guest-virtual page. Its tag is the page's address with the
// address space in the low bits.
type Entry[T comparable] struct {
	Tag uint64
	To  T
}

// Bank is a direct-mapped cache of translations that were all made for one
// kind of access in one class of privilege: that an entry is present is all the
// permission an access needs. The zero value is empty.
type Bank[T comparable] [BankSize]Entry[T]

// At returns the only entry that may hold the page of va.
func (b *Bank[T]) At(va uint64) *Entry[T] { return &b[index(va)] }

func index(va uint64) uint64 { return va >> 12 & (BankSize - 1) }

// Tag returns what the entry for an access of size bytes at va is tagged with
// in the address space space (MMU.Space). An access that crosses into the next
// page has the tag of that page, which the entry At(va) can not hold, so that
// one comparison covers translation, permission and crossing.
func Tag(va, size, space uint64) uint64 { return (va+(size-1))&pageMask | space }

// Clear empties the bank.
func (b *Bank[T]) Clear() { *b = Bank[T]{} }

// DropPage forgets the page of va, in whatever address space.
func (b *Bank[T]) DropPage(va uint64) {
	if e := b.At(va); (e.Tag^va)&pageMask == 0 {
		*e = Entry[T]{}
	}
}

// DropSpace forgets what belongs to an address space.
func (b *Bank[T]) DropSpace(space uint64) {
	b.dropIf(func(e *Entry[T]) bool { return e.Tag&^pageMask == space })
}

// DropRegion forgets all pages in the aligned region of 1<<shift bytes around
// va.
func (b *Bank[T]) DropRegion(va uint64, shift uint) {
	b.dropIf(func(e *Entry[T]) bool { return (e.Tag^va)>>shift == 0 })
}

// dropIf forgets every entry that matches.
func (b *Bank[T]) dropIf(match func(*Entry[T]) bool) {
	for i := range b {
		if e := &b[i]; match(e) {
			*e = Entry[T]{}
		}
	}
}
