package mmu

import (
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

// Page-table entries (priv 12.3.1, 12.4.1).
const (
	pteV uint64 = 1 << iota
	pteR
	pteW
	pteX
	pteU
	pteG
	pteA
	pteD

	ptePPNShift = 10
	ptePPN      = (uint64(1)<<44 - 1) << ptePPNShift
	// pteReserved must be zero: bits of Svnapot, Svpbmt and of extensions to
	// come.
	pteReserved = uint64(0x3ff) << 54

	levels = 3
)

// Translate returns the GPA of va for an access in the present mode, and sets
// the accessed and dirty bits as hardware does (Svadu).
func (m *MMU) Translate(va uint64, a Access) (gpa uint64, f Fault) {
	if !hart.Sv39(m.satp) {
		return va, NoFault
	}
	// priv 12.4.1: bits 63 to 39 must equal bit 38.
	if int64(va)>>38 != int64(va)>>63 {
		return 0, PageFault
	}
	for range maxWalks {
		gpa, changed, f := m.walk(va, a)
		if !changed {
			return gpa, f
		}
	}
	return 0, PageFault
}

// maxWalks bounds how often a walk starts over because another hart changes the
// entry under it. A guest that is denied the page looks and tries again.
const maxWalks = 64

// walk is steps 1 to 10 of priv 12.3.2; changed has the walk start over.
func (m *MMU) walk(va uint64, a Access) (gpa uint64, changed bool, f Fault) {
	table := hart.RootTable(m.satp)
	global := false
	for level := levels - 1; level >= 0; level-- {
		shift := uint(12 + 9*level)
		at := table + va>>shift&0x1ff*8
		pte, ok := m.readPTE(at)
		if !ok {
			return 0, false, AccessFault // priv 12.3.2 step 2
		}
		if m.path != nil {
			*m.path = append(*m.path, tableEntry{at, pte})
		}
		// priv 12.3.2 step 3: not valid, or a reserved combination.
		if pte&pteV == 0 || pte&(pteR|pteW) == pteW || pte&pteReserved != 0 {
			return 0, false, PageFault
		}
		global = global || pte&pteG != 0
		if pte&(pteR|pteW|pteX) == 0 {
			// priv 12.3.2 step 4: a pointer to the next level, in which D, A
			// and U are reserved.
			if pte&(pteD|pteA|pteU) != 0 {
				return 0, false, PageFault
			}
			table = pte & ptePPN << 2
			continue
		}
		return m.leaf(va, a, at, pte, level, global)
	}
	return 0, false, PageFault // priv 12.3.2 step 4: no level is left
}

// leaf is steps 5 to 10 of priv 12.3.2.
func (m *MMU) leaf(va uint64, a Access, at, pte uint64, level int, global bool) (gpa uint64, changed bool, f Fault) {
	if !m.permitted(pte, a) {
		return 0, false, PageFault
	}
	offset := uint64(1)<<(12+9*level) - 1
	base := pte & ptePPN << 2
	if base&offset != 0 {
		return 0, false, PageFault // a large page that is not aligned
	}
	need := pteA
	if a == Store {
		need |= pteD
	}
	if pte&need != need {
		if m.speculative {
			return 0, false, PageFault
		}
		if changed, f := m.updatePTE(at, pte, pte|need); changed || f != NoFault {
			return 0, changed, f
		}
	}
	if level > 0 {
		m.large.add(va, level)
	}
	switch {
	case global || m.class == classUser:
	case a == Fetch:
		m.localFetch = true
	default:
		m.local[m.class] = true
	}
	return base | va&offset, false, NoFault
}

// permitted is priv 12.3.2 step 5: the leaf's permission bits, SUM and MXR.
func (m *MMU) permitted(pte uint64, a Access) bool {
	switch a {
	case Fetch:
		if pte&pteX == 0 {
			return false
		}
	case Load:
		if pte&pteR == 0 && (!m.mxr || pte&pteX == 0) {
			return false
		}
	case Store:
		if pte&pteW == 0 {
			return false
		}
	}
	if m.mode == hart.User {
		return pte&pteU != 0
	}
	return pte&pteU == 0 || m.class == classKernelU && a != Fetch
}

// largePages remembers where pieces of large pages were cached since the last
// complete flush. It may name too much, never too little.
type largePages struct {
	seen [32]uint64 // a hash set of 2 MiB regions
	giga bool       // a 1 GiB page was cached
}

func (l *largePages) slot(va uint64) (word *uint64, bit uint64) {
	h := va >> 21
	h ^= h >> 11
	return &l.seen[h>>6&31], 1 << (h & 63)
}

func (l *largePages) add(va uint64, level int) {
	if level > 1 {
		l.giga = true
	}
	word, bit := l.slot(va)
	*word |= bit
}

// shift returns how large a region around va may have been mapped by one PTE.
func (l *largePages) shift(va uint64) uint {
	if l.giga {
		return 30
	}
	if word, bit := l.slot(va); *word&bit != 0 {
		return 21
	}
	return 12
}
