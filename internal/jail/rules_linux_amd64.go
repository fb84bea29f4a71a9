package jail

import "golang.org/x/sys/unix"

const (
	filterArch = unix.AUDIT_ARCH_X86_64
	sysFstatat = unix.SYS_NEWFSTATAT
	// lastCall is the highest number of a system call that there was when the rules
	// were written.
	lastCall = unix.SYS_RSEQ_SLICE_YIELD
)

// legacyCalls are older forms of calls that are allowed.
var legacyCalls = []uint32{unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_TIME}

// triedLegacyCalls are older forms of triedCalls.
var triedLegacyCalls = []uint32{
	unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS, unix.SYS_MKDIR, unix.SYS_RMDIR,
	unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_LINK, unix.SYS_SYMLINK, unix.SYS_CHMOD, unix.SYS_PIPE, unix.SYS_DUP2, unix.SYS_ARCH_PRCTL,
	unix.SYS_GETPGRP, unix.SYS_RENAMEAT, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT,
}
