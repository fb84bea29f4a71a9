package jail

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// deed is something that a jailed process is told to do. What it returns is what it has
// seen: a deed that gets further than it should shows it.
type deed func(conn *net.UnixConn, o order) (saw string, err error)

// attack is a deed that must fail.
type attack struct {
	name string
	deed deed
	// kills is set if the attempt is the end of the process; otherwise the filter's error
	// is want.
	kills bool
	want  unix.Errno
}

// raw makes a system call that must fail, with numbers only.
func raw(call uintptr, args ...uintptr) deed {
	return func(*net.UnixConn, order) (string, error) {
		var a [6]uintptr
		copy(a[:], args)
		n, _, e := unix.Syscall6(call, a[0], a[1], a[2], a[3], a[4], a[5])
		if e != 0 {
			return "", e
		}
		return fmt.Sprint("the call returned ", n), nil
	}
}

func readFile(path func(order) string) deed {
	return func(_ *net.UnixConn, o order) (string, error) {
		b, err := os.ReadFile(path(o))
		return string(b), err
	}
}

func fixed(path string) func(order) string { return func(order) string { return path } }

func dial(network string, address func(order) string) deed {
	return func(_ *net.UnixConn, o order) (string, error) {
		c, err := net.Dial(network, address(o))
		if err != nil {
			return "", err
		}
		return "connected to " + c.RemoteAddr().String(), nil
	}
}

func socket(family, kind int) deed {
	return func(*net.UnixConn, order) (string, error) {
		fd, err := unix.Socket(family, kind, 0)
		return fmt.Sprint("descriptor ", fd), err
	}
}

const tiocsti = 0x5412

var cat = []byte("/bin/cat\x00")

// attacks are tried one by one, each against all walls. Where it is about signals, none is
// sent: whether one could be is the same question.
var attacks = []attack{
	// Files.
	{"read a file", readFile(func(o order) string { return o.On.File }), false, unix.EPERM},
	{"list the root", func(*net.UnixConn, order) (string, error) {
		entries, err := os.ReadDir("/")
		return fmt.Sprint(entries), err
	}, false, unix.EPERM},
	{"write a file", func(*net.UnixConn, order) (string, error) {
		return "written", os.WriteFile("/tmp/escaped", nil, 0o644)
	}, false, unix.EPERM},
	{"own memory as a file", readFile(fixed("/proc/self/mem")), false, unix.EPERM},
	{"sibling's memory as a file", readFile(func(o order) string { return fmt.Sprintf("/proc/%d/mem", o.On.Sibling) }), false, unix.EPERM},
	{"parent directory of the root", func(*net.UnixConn, order) (string, error) {
		fd, err := unix.Open("../../../..", unix.O_PATH, 0)
		return fmt.Sprint("descriptor ", fd), err
	}, false, unix.EPERM},
	{"file by handle", openHandle, true, 0},
	{"chroot", func(*net.UnixConn, order) (string, error) { return "changed", unix.Chroot(".") }, true, 0},
	{"mount", func(*net.UnixConn, order) (string, error) {
		return "mounted", unix.Mount("x", "/", "tmpfs", 0, "")
	}, true, 0},
	{"new mount interface", raw(unix.SYS_FSOPEN, addressOf([]byte("tmpfs\x00")), 0), true, 0},
	{"pivot_root", raw(unix.SYS_PIVOT_ROOT, addressOf([]byte(".\x00")), addressOf([]byte(".\x00"))), true, 0},

	// Networks.
	{"inet socket", socket(unix.AF_INET, unix.SOCK_STREAM), false, unix.EPERM},
	{"inet6 socket", socket(unix.AF_INET6, unix.SOCK_DGRAM), false, unix.EPERM},
	{"netlink socket", socket(unix.AF_NETLINK, unix.SOCK_RAW), false, unix.EPERM},
	{"vsock socket", socket(unix.AF_VSOCK, unix.SOCK_STREAM), false, unix.EPERM},
	{"packet socket", socket(unix.AF_PACKET, unix.SOCK_RAW), false, unix.EPERM},
	{"kernel crypto socket", socket(unix.AF_ALG, unix.SOCK_SEQPACKET), false, unix.EPERM},
	{"the daemon's socket", dial("unix", func(o order) string { return o.On.Socket }), false, unix.EPERM},
	{"abstract socket", dial("unix", func(o order) string { return o.On.Abstract }), false, unix.EPERM},
	{"the daemon's port", dial("tcp", func(o order) string { return o.On.TCP }), false, unix.EPERM},
	{"listen on what there is", func(*net.UnixConn, order) (string, error) {
		return "listening", unix.Listen(controlFD, 1)
	}, false, unix.EPERM},

	// Other processes.
	{"sibling's memory", readMemory, true, 0},
	{"trace a sibling", func(_ *net.UnixConn, o order) (string, error) {
		return "attached", unix.PtraceAttach(o.On.Sibling)
	}, true, 0},
	{"trace the daemon", func(_ *net.UnixConn, o order) (string, error) {
		return "attached", unix.PtraceAttach(o.On.Daemon)
	}, true, 0},
	{"end a sibling", func(_ *net.UnixConn, o order) (string, error) {
		return "sent", unix.Kill(o.On.Sibling, 0)
	}, false, unix.EPERM},
	{"end the daemon", func(_ *net.UnixConn, o order) (string, error) {
		return "sent", unix.Kill(o.On.Daemon, 0)
	}, false, unix.EPERM},
	{"end everyone", func(*net.UnixConn, order) (string, error) { return "sent", unix.Kill(-1, 0) }, false, unix.EPERM},
	{"a sibling's thread", func(_ *net.UnixConn, o order) (string, error) {
		return "sent", unix.Tgkill(o.On.Sibling, o.On.Sibling, 0)
	}, false, unix.EPERM},
	{"thread by number alone", raw(unix.SYS_TKILL, 2, 0), true, 0},
	{"signals from a file's owner", func(*net.UnixConn, order) (string, error) {
		_, err := unix.FcntlInt(controlFD, unix.F_SETOWN, 1)
		return "owner set", err
	}, false, unix.EPERM},
	{"pidfd of a sibling", func(_ *net.UnixConn, o order) (string, error) {
		fd, err := unix.PidfdOpen(o.On.Sibling, 0)
		return fmt.Sprint("descriptor ", fd), err
	}, false, unix.EPERM},
	{"a process's descriptors", raw(unix.SYS_PIDFD_GETFD, controlFD, 0, 0), true, 0},
	{"another's limits", func(_ *net.UnixConn, o order) (string, error) {
		return "set", unix.Prlimit(o.On.Sibling, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil)
	}, false, unix.EPERM},
	{"a sibling's priority", func(_ *net.UnixConn, o order) (string, error) {
		return "set", unix.Setpriority(unix.PRIO_PROCESS, o.On.Sibling, 19)
	}, false, unix.EPERM},

	// Programs and processes.
	{"execute a program", func(_ *net.UnixConn, o order) (string, error) {
		return "", unix.Exec(o.On.File, nil, nil)
	}, true, 0},
	{"execute a memory file", executeMemory, true, 0},
	{"fork", raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD)), false, unix.EPERM},
	{"vfork", raw(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK|uintptr(unix.SIGCHLD)), false, unix.EPERM},
	{"clone3", raw(unix.SYS_CLONE3, 0, 0), false, unix.ENOSYS},
	{"thread in a new network", raw(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_SIGHAND|unix.CLONE_THREAD|unix.CLONE_NEWNET), false, unix.EPERM},
	{"new user namespace", func(*net.UnixConn, order) (string, error) {
		return "unshared", unix.Unshare(unix.CLONE_NEWUSER)
	}, true, 0},
	{"enter a namespace", func(*net.UnixConn, order) (string, error) {
		return "entered", unix.Setns(controlFD, 0)
	}, true, 0},

	// Ways into the kernel.
	{"bpf", raw(unix.SYS_BPF), true, 0},
	{"perf events", raw(unix.SYS_PERF_EVENT_OPEN), true, 0},
	{"keys", raw(unix.SYS_KEYCTL), true, 0},
	{"io_uring", raw(unix.SYS_IO_URING_SETUP, 8, 0), true, 0},
	{"userfaultfd", raw(unix.SYS_USERFAULTFD, 0), true, 0},
	{"modules", raw(unix.SYS_FINIT_MODULE, controlFD), true, 0},
	{"kexec", raw(unix.SYS_KEXEC_LOAD), true, 0},
	{"clock", func(*net.UnixConn, order) (string, error) {
		var now unix.Timespec
		unix.ClockGettime(unix.CLOCK_REALTIME, &now)
		return "set", unix.ClockSettime(unix.CLOCK_REALTIME, &now)
	}, true, 0},
	{"message queues", raw(unix.SYS_MSGGET, 0, 0o1600), true, 0},
	{"System V memory", raw(unix.SYS_SHMGET, 0, 4096, 0o1600), true, 0},
	{"a terminal's input", raw(unix.SYS_IOCTL, 0, tiocsti, addressOf(cat)), false, unix.ENOTTY},
	{"a request with more bits than the kernel looks at", raw(unix.SYS_IOCTL, 0, 1<<32|tiocsti, addressOf(cat)), false, unix.ENOTTY},
	{"socket option of another protocol", func(*net.UnixConn, order) (string, error) {
		return "set", unix.SetsockoptInt(controlFD, unix.IPPROTO_IP, unix.IP_TTL, 1)
	}, false, unix.EPERM},
	{"a call of the 32-bit kind", raw(1<<30 | unix.SYS_GETPID), true, 0},
	{"a call that does not exist yet", raw(lastCall + 1), false, unix.ENOSYS},

	// Memory.
	{"memory to write and execute", mapMemory(unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE), false, unix.EPERM},
	{"anonymous memory to execute", mapMemory(unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE), false, unix.EPERM},
	{"memory made executable later", func(*net.UnixConn, order) (string, error) {
		m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return "mapping failed", nil
		}
		return "executable", unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC)
	}, false, unix.EPERM},
	{"memory file that can be executed", func(*net.UnixConn, order) (string, error) {
		fd, err := unix.MemfdCreate("x", unix.MFD_EXEC)
		return fmt.Sprint("descriptor ", fd), err
	}, false, unix.EPERM},

	// The walls themselves.
	{"dumpable again", func(*net.UnixConn, order) (string, error) {
		return "set", unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}, false, unix.EPERM},
	{"privileges again", func(*net.UnixConn, order) (string, error) {
		return "set", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)
	}, false, unix.EPERM},
	{"tracers", func(*net.UnixConn, order) (string, error) {
		return "set", unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0)
	}, false, unix.EPERM},
	{"another filter", raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_STRICT), true, 0},
	{"capabilities", raw(unix.SYS_CAPSET, 0, 0), true, 0},
	{"root", raw(unix.SYS_SETUID, 0), true, 0},
	{"own limits", func(*net.UnixConn, order) (string, error) {
		return "set", unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
	}, false, unix.EPERM},
	{"host name", raw(unix.SYS_SETHOSTNAME, addressOf(cat), 3), true, 0},
}

func openHandle(_ *net.UnixConn, o order) (string, error) {
	h := unix.NewFileHandle(o.On.HandleType, o.On.Handle)
	fd, err := unix.OpenByHandleAt(controlFD, h, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := unix.Read(fd, b)
	return string(b[:max(n, 0)]), err
}

func readMemory(_ *net.UnixConn, o order) (string, error) {
	b := make([]byte, len(secret))
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMReadv(o.On.Sibling, local, []unix.RemoteIovec{{Base: uintptr(o.On.SiblingSecret), Len: len(b)}}, 0)
	return string(b[:max(n, 0)]), err
}

func executeMemory(*net.UnixConn, order) (string, error) {
	fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	if err != nil {
		return "making it failed", nil
	}
	if _, err := unix.Write(fd, []byte("program")); err != nil {
		return "writing it failed", nil
	}
	_, _, e := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(fd), addressOf([]byte{0}), 0, 0, unix.AT_EMPTY_PATH, 0)
	return "", e
}

func mapMemory(prot, flags int) deed {
	return func(*net.UnixConn, order) (string, error) {
		_, err := unix.Mmap(-1, 0, 4096, prot, flags)
		return "mapped", err
	}
}

// deeds are all that a jailed process can be told to do.
var deeds map[string]deed

func init() {
	deeds = map[string]deed{
		"nothing": func(*net.UnixConn, order) (string, error) { return "", nil },
		"is dumpable": func(*net.UnixConn, order) (string, error) {
			n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
			return fmt.Sprint(n), err
		},
		"tell its environment": func(*net.UnixConn, order) (string, error) {
			return strings.Join(os.Environ(), "\n"), nil
		},
		"work":     work,
		"receive":  receive,
		"serve":    serve,
		"hoard":    hoard,
		"multiply": multiply,
	}
	for _, a := range attacks {
		deeds[a.name] = a.deed
	}
}

// multiply starts as many threads as it is told, which all wait.
func multiply(_ *net.UnixConn, o order) (string, error) {
	n, err := strconv.Atoi(o.Arg)
	if err != nil {
		return "", err
	}
	for range n {
		go unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &unix.Timespec{Sec: 3600}, nil)
	}
	return "", nil
}

// hoard takes as many MiB of memory as it is told.
func hoard(_ *net.UnixConn, o order) (string, error) {
	n, err := strconv.Atoi(o.Arg)
	if err != nil {
		return "", err
	}
	m, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return "", err
	}
	for i := 0; i < len(m); i += 4096 {
		m[i] = 1
	}
	return strings.Repeat("x", int(m[0])), nil
}

var errWrong = errors.New("that went wrong")
