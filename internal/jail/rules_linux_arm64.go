package jail

import "golang.org/x/sys/unix"

const (
	filterArch = unix.AUDIT_ARCH_AARCH64
	sysFstatat = unix.SYS_FSTATAT
	// lastCall is the highest number of a system call that there was when the rules
	// were written.
	lastCall = unix.SYS_RSEQ_SLICE_YIELD
)

// legacyCalls are older forms of calls that are allowed.
var legacyCalls []uint32

// triedLegacyCalls are older forms of triedCalls.
var triedLegacyCalls = []uint32{unix.SYS_RENAMEAT, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT}
