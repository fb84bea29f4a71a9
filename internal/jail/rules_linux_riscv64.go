package jail

import "golang.org/x/sys/unix"

const (
	filterArch = unix.AUDIT_ARCH_RISCV64
	sysFstatat = unix.SYS_FSTATAT
	// lastCall is the highest number of a system call that there was when the rules
	// were written.
	lastCall = unix.SYS_RSEQ_SLICE_YIELD
)

// The processor is too young for older forms of calls.
var legacyCalls, triedLegacyCalls []uint32
