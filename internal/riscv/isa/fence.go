package isa

// Accesses that a FENCE orders (unpriv 2.7), as its immediate has them: those
// before it in bits 7:4, those after it in bits 3:0.
const (
	FenceW = 1 << iota
	FenceR
	FenceO
	FenceI
)

// Fence returns the FENCE that orders the accesses before it with those after it.
func Fence(before, after int32) Inst { return Inst{Op: FENCE, Size: 4, Imm: before<<4 | after} }

// StoreLoad reports whether a FENCE orders stores before it with loads after it,
// which is the one order that hosts like amd64 do not keep by themselves.
func (in Inst) StoreLoad() bool { return in.Imm>>4&FenceW != 0 && in.Imm&FenceR != 0 }

// IsPause reports whether a FENCE is PAUSE, which a hart executes while it spins
// (Zihintpause).
func (in Inst) IsPause() bool { return in.Imm == FenceW<<4 }
