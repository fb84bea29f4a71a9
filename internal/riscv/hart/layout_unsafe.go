package hart

import "unsafe"

// Where native code finds registers that nothing else outside of this package may
// touch: offsets in a Hart.
const (
	OffsetEnabled = unsafe.Offsetof(Hart{}.enabled) // sie
	OffsetPending = unsafe.Offsetof(Hart{}.pending) // sip; read only
	OffsetScratch = unsafe.Offsetof(Hart{}.scratch) // sscratch
	OffsetEPC     = unsafe.Offsetof(Hart{}.epc)     // sepc; bit 0 must be zero
	OffsetCause   = unsafe.Offsetof(Hart{}.cause)   // scause
	OffsetTval    = unsafe.Offsetof(Hart{}.tval)    // stval
)

// StatusWritable is the bits of sstatus that are kept in Hart.Status, and that
// software may write. When it is read, there are more; see ReadCSR.
const StatusWritable = statusWritable
