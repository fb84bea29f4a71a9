//go:build linux && (amd64 || arm64 || riscv64)

package jail

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// judge runs the filter as the kernel would.
func judge(t testing.TB, filter []bpf.RawInstruction, arch, call uint32, args ...uint64) uint32 {
	t.Helper()
	program, ok := bpf.Disassemble(filter)
	if !ok {
		t.Fatal("the filter has instructions that nobody knows")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel loads words in the processor's order, this machine in the network's.
	data := make([]byte, offArgs+6*8)
	binary.BigEndian.PutUint32(data[offCall:], call)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[offArgs+8*i+4:], uint32(a>>32))
	}
	n, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

const testPID = 4711

func testFilter(t testing.TB, p Profile) []bpf.RawInstruction {
	t.Helper()
	filter, err := compile(filterArch, lastCall, rules(p, testPID))
	if err != nil {
		t.Fatal(err)
	}
	return filter
}

// TestFilter: what it decides depends on the call, the arguments and the profile.
func TestFilter(t *testing.T) {
	const (
		r, w, x   = unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC
		shared    = unix.MAP_SHARED
		private   = unix.MAP_PRIVATE
		anonymous = unix.MAP_ANONYMOUS
		request   = 0xae80
		thread    = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD
		high      = 1 << 32
	)
	eperm, enosys, enotty := retError(unix.EPERM), retError(unix.ENOSYS), retError(unix.ENOTTY)
	plain, native := testFilter(t, Profile{}), testFilter(t, Profile{NativeCode: true})
	device := testFilter(t, Profile{Requests: []uint32{1, request, 3}})
	for _, c := range []struct {
		name   string
		filter []bpf.RawInstruction
		call   uint32
		args   []uint64
		want   uint32
	}{
		{"read", plain, unix.SYS_READ, nil, retAllow},
		{"execve", plain, unix.SYS_EXECVE, nil, retKill},
		{"openat", plain, unix.SYS_OPENAT, nil, eperm},
		{"clone3", plain, unix.SYS_CLONE3, nil, enosys},
		{"next year's", plain, lastCall + 1, nil, enosys},
		{"last that is known", plain, lastCall, nil, retKill},
		{"foreign", plain, 1<<30 | unix.SYS_READ, nil, retKill},
		{"negative", plain, ^uint32(0), nil, retKill},

		{"map", plain, unix.SYS_MMAP, []uint64{0, 1, r | w, private | anonymous}, retAllow},
		{"map code, plain", plain, unix.SYS_MMAP, []uint64{0, 1, r | x, shared, 5}, eperm},
		{"map code", native, unix.SYS_MMAP, []uint64{0, 1, r | x, shared, 5}, retAllow},
		{"map code and write", native, unix.SYS_MMAP, []uint64{0, 1, r | w | x, shared, 5}, eperm},
		{"map code privately", native, unix.SYS_MMAP, []uint64{0, 1, r | x, private, 5}, eperm},
		{"map anonymous code", native, unix.SYS_MMAP, []uint64{0, 1, r | x, shared | anonymous}, eperm},
		{"protect", native, unix.SYS_MPROTECT, []uint64{0, 1, r}, retAllow},
		{"protect as code", native, unix.SYS_MPROTECT, []uint64{0, 1, r | x}, eperm},

		{"thread", plain, unix.SYS_CLONE, []uint64{thread}, retAllow},
		{"process", plain, unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, eperm},
		{"thread in a network of its own", plain, unix.SYS_CLONE, []uint64{thread | unix.CLONE_NEWNET}, eperm},
		{"signal", plain, unix.SYS_TGKILL, []uint64{testPID, 5, 6}, retAllow},
		{"signal to another", plain, unix.SYS_TGKILL, []uint64{testPID + 1, 5, 6}, eperm},
		{"signal to a group", plain, unix.SYS_KILL, []uint64{^uint64(0), 9}, eperm},

		{"request", device, unix.SYS_IOCTL, []uint64{5, request}, retAllow},
		{"first request", device, unix.SYS_IOCTL, []uint64{5, 1}, retAllow},
		{"last request", device, unix.SYS_IOCTL, []uint64{5, 3}, retAllow},
		{"request, bits that the kernel drops", device, unix.SYS_IOCTL, []uint64{5, request | high}, retAllow},
		{"other request", device, unix.SYS_IOCTL, []uint64{5, request + 1}, enotty},
		{"request, plain", plain, unix.SYS_IOCTL, []uint64{5, request}, enotty},

		{"limits", plain, unix.SYS_PRLIMIT64, []uint64{0, 7, 0, 1}, retAllow},
		{"own limits", plain, unix.SYS_PRLIMIT64, []uint64{testPID, 7, 0, 1}, retAllow},
		{"new limits", plain, unix.SYS_PRLIMIT64, []uint64{0, 7, 1}, eperm},
		{"new limits, high address", plain, unix.SYS_PRLIMIT64, []uint64{0, 7, high}, eperm},
		{"another's limits", plain, unix.SYS_PRLIMIT64, []uint64{1, 7, 0, 1}, eperm},
		{"send", plain, unix.SYS_SENDTO, []uint64{3, 1, 1, 0, 0, 0}, retAllow},
		{"send to", plain, unix.SYS_SENDTO, []uint64{3, 1, 1, 0, high, 2}, eperm},
		{"memory file", plain, unix.SYS_MEMFD_CREATE, []uint64{1, unix.MFD_CLOEXEC | unix.MFD_NOEXEC_SEAL}, retAllow},
		{"memory file for programs", plain, unix.SYS_MEMFD_CREATE, []uint64{1, unix.MFD_EXEC}, eperm},
		{"name memory", plain, unix.SYS_PRCTL, []uint64{unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME}, retAllow},
		{"dumpable", plain, unix.SYS_PRCTL, []uint64{unix.PR_SET_DUMPABLE, 1}, eperm},
	} {
		if got := judge(t, c.filter, filterArch, c.call, c.args...); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
	if got := judge(t, plain, filterArch^1, unix.SYS_READ); got != retKill {
		t.Errorf("another processor's calls: %#x", got)
	}
}

// TestRulesAreClear: no call has two rules, of which one would never be looked at.
func TestRulesAreClear(t *testing.T) {
	seen := make(map[uint32]bool)
	for _, r := range rules(Profile{NativeCode: true, Requests: []uint32{1}}, testPID) {
		if seen[r.call] {
			t.Errorf("call %d has two rules", r.call)
		}
		seen[r.call] = true
		if r.call > lastCall {
			t.Errorf("call %d is unknown to the rules' own list", r.call)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d rules", len(seen))
	}
}

// TestFilterIsBounded: too many rules are an error.
func TestFilterIsBounded(t *testing.T) {
	if _, err := compile(filterArch, lastCall, rules(Profile{Requests: make([]uint32, 5000)}, 1)); err == nil {
		t.Error("a filter that the kernel would not take was made")
	}
}
