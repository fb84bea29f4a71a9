//go:build linux && (amd64 || arm64 || riscv64)

package jail

import (
	"slices"

	"golang.org/x/sys/unix"
)

// rules returns what is allowed to a process with that profile and id.
func rules(p Profile, pid int) []rule {
	return slices.Concat(
		// What machines do all the time comes first.
		[]rule{{unix.SYS_IOCTL, anyOf(1, p.Requests...), unix.ENOTTY}},
		allow(frequent...),
		guarded(p, uint32(pid)),
		allow(runtimeCalls...),
		allow(descriptorCalls...),
		allow(legacyCalls...),
		refuse(unix.EPERM, triedCalls...),
		refuse(unix.EPERM, triedLegacyCalls...),
		refuse(unix.ENOSYS, absentCalls...),
	)
}

func allow(calls ...uint32) (rules []rule) {
	for _, c := range calls {
		rules = append(rules, rule{call: c, when: []tests{{}}})
	}
	return rules
}

func refuse(e unix.Errno, calls ...uint32) (rules []rule) {
	for _, c := range calls {
		rules = append(rules, rule{call: c, otherwise: e})
	}
	return rules
}

// frequent are calls that every machine makes all the time.
var frequent = []uint32{
	unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_READ, unix.SYS_WRITE, unix.SYS_NANOSLEEP, unix.SYS_MADVISE,
	unix.SYS_RT_SIGRETURN,
}

// runtimeCalls are made by Go's runtime, and by the C library if there is one: memory,
// threads, signals to itself, time.
var runtimeCalls = []uint32{
	unix.SYS_BRK, unix.SYS_MUNMAP, unix.SYS_MINCORE,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_SET_TID_ADDRESS, unix.SYS_RSEQ, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_SIGALTSTACK,
	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_GETTIMEOFDAY,
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
	unix.SYS_GETRANDOM, unix.SYS_GETRUSAGE, unix.SYS_TIMES, unix.SYS_UNAME, unix.SYS_SYSINFO, unix.SYS_GETCPU,
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETPPID,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EVENTFD2, unix.SYS_PPOLL,
}

// descriptorCalls work on descriptors that the process has.
var descriptorCalls = []uint32{
	unix.SYS_CLOSE, unix.SYS_LSEEK, unix.SYS_FSTAT,
	unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREADV, unix.SYS_PWRITEV,
	unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC,
	unix.SYS_ACCEPT4, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN,
	unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
}

// namespaces are the flags of clone that make one.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

const mapKind = 0xf // MAP_TYPE: shared, private

// guarded are calls that depend on their arguments.
func guarded(p Profile, pid uint32) []rule {
	plain := tests{bits(2, unix.PROT_EXEC, 0)}
	mapping := []tests{plain}
	if p.NativeCode {
		mapping = append(mapping, tests{
			bits(2, unix.PROT_WRITE|unix.PROT_EXEC, unix.PROT_EXEC),
			bits(3, mapKind|unix.MAP_ANONYMOUS, unix.MAP_SHARED),
		})
	}
	const memfd = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING | unix.MFD_NOEXEC_SEAL
	itself := []tests{{is(0, pid)}}
	own := append([]tests{{is(0, 0), is(2, 0), {arg: 2, high: true, mask: all}}},
		tests{is(0, pid), is(2, 0), {arg: 2, high: true, mask: all}})
	socketOptions := []tests{{is(1, unix.SOL_SOCKET)}}
	return []rule{
		{unix.SYS_MMAP, mapping, unix.EPERM},
		{unix.SYS_MPROTECT, []tests{plain}, unix.EPERM},
		{unix.SYS_MEMFD_CREATE, []tests{{bits(1, ^uint32(memfd), 0)}}, unix.EPERM},
		{unix.SYS_CLONE, []tests{{bits(0, unix.CLONE_THREAD|namespaces, unix.CLONE_THREAD)}}, unix.EPERM},
		{unix.SYS_TGKILL, itself, unix.EPERM},
		{unix.SYS_KILL, itself, unix.EPERM},
		{unix.SYS_PRCTL, []tests{{is(0, unix.PR_SET_VMA), is(1, unix.PR_SET_VMA_ANON_NAME)}}, unix.EPERM},
		{unix.SYS_PRLIMIT64, own, unix.EPERM},
		{unix.SYS_FCNTL, anyOf(1, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL,
			unix.F_ADD_SEALS, unix.F_GET_SEALS), unix.EPERM},
		{unix.SYS_GETSOCKOPT, socketOptions, unix.EPERM},
		{unix.SYS_SETSOCKOPT, socketOptions, unix.EPERM},
		{unix.SYS_SENDTO, []tests{zero(4)}, unix.EPERM}, // no address: to the peer it has
	}
}

// triedCalls are made by libraries, which go on without them or report an error. They
// are all about files and sockets by name, about children, and about what the process
// was given.
var triedCalls = []uint32{
	unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_READLINKAT, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_STATX, sysFstatat,
	unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_GETDENTS64, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_TRUNCATE,
	unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_SYMLINKAT, unix.SYS_LINKAT, unix.SYS_RENAMEAT2,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_FLOCK, unix.SYS_UMASK,
	unix.SYS_INOTIFY_INIT1, unix.SYS_SYNC, unix.SYS_FADVISE64,
	unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_CONNECT, unix.SYS_ACCEPT,
	unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_MREMAP, unix.SYS_MLOCK, unix.SYS_MSYNC,
	unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_GETPRIORITY, unix.SYS_SETPRIORITY, unix.SYS_SCHED_SETAFFINITY,
	unix.SYS_GETGROUPS, unix.SYS_GETPGID, unix.SYS_GETSID, unix.SYS_CAPGET,
}

// absentCalls are ones that libraries do without if the kernel does not have them.
var absentCalls = []uint32{
	unix.SYS_CLONE3, // whose flags lie in memory, where no filter sees them; clone does the same
	unix.SYS_MEMBARRIER, unix.SYS_EPOLL_PWAIT2, unix.SYS_FUTEX_WAITV,
	unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_PIPE2, unix.SYS_CLOSE_RANGE,
}
