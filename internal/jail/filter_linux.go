package jail

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter of system calls is a program that the kernel runs ahead of each. Calls
// that have a rule are allowed, or are errors, by their arguments; those that are not
// known to this program's kernel headers do not exist, so that whoever tries something
// new goes on with something old; and whatever else there is ends the process: nothing
// that belongs to it ever makes such a call.

// rule is what becomes of one system call.
type rule struct {
	call uint32
	// when are the cases in which it is allowed; a single one without tests is always true.
	when []tests
	// otherwise is the error of the call in all others.
	otherwise unix.Errno
}

// tests are true together.
type tests []test

// test looks at half of an argument: that the bits in mask are those of value.
type test struct {
	arg         int
	high        bool // the upper half
	mask, value uint32
}

const all = ^uint32(0)

// is is true if the lower half of an argument has that value.
func is(arg int, value uint32) test { return test{arg: arg, mask: all, value: value} }

// bits is true if in the lower half of an argument, of the bits in mask those in value
// are set.
func bits(arg int, mask, value uint32) test { return test{arg: arg, mask: mask, value: value} }

// zero is true if the argument is.
func zero(arg int) tests { return tests{is(arg, 0), {arg: arg, high: true, mask: all}} }

// anyOf is true if the lower half of an argument has one of the values.
func anyOf(arg int, values ...uint32) (when []tests) {
	for _, v := range values {
		when = append(when, tests{is(arg, v)})
	}
	return when
}

// Offsets in struct seccomp_data, which the program is given (the kernel's
// include/uapi/linux/seccomp.h).
const (
	offCall = 0
	offArch = 4
	offArgs = 16
)

// offset is where the half of the argument lies. All processors that there are rules
// for are little-endian.
func (t test) offset() uint32 {
	off := uint32(offArgs + 8*t.arg)
	if t.high {
		off += 4
	}
	return off
}

const (
	retAllow = unix.SECCOMP_RET_ALLOW
	retKill  = unix.SECCOMP_RET_KILL_PROCESS
)

func retError(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// foreignCalls is a bit in numbers of system calls that belong to another calling
// convention of the same processor, as amd64's x32 does (__X32_SYSCALL_BIT).
const foreignCalls = 1 << 30

// compile makes the program. The rules that matter for speed come first.
func compile(arch, last uint32, rules []rule) ([]bpf.RawInstruction, error) {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: retKill},
		bpf.LoadAbsolute{Off: offCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: foreignCalls, SkipTrue: 1},
		bpf.RetConstant{Val: retKill},
	}
	for _, r := range rules {
		body := r.compile()
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: r.call, SkipTrue: 1},
			bpf.Jump{Skip: uint32(len(body))})
		program = append(program, body...)
	}
	program = append(program,
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: last, SkipFalse: 1},
		bpf.RetConstant{Val: retError(unix.ENOSYS)},
		bpf.RetConstant{Val: retKill})
	if len(program) > maxFilter {
		return nil, fmt.Errorf("a filter of %d instructions, more than %d", len(program), maxFilter)
	}
	return bpf.Assemble(program)
}

const maxFilter = 4096 // BPF_MAXINSNS

// compile makes what decides about one call. It ends the program in any case.
func (r rule) compile() (body []bpf.Instruction) {
	if len(r.when) == 1 && len(r.when[0]) == 0 {
		return []bpf.Instruction{bpf.RetConstant{Val: retAllow}}
	}
	loaded := uint32(0) // what the accumulator holds, unmasked; 0: something else
	for _, when := range r.when {
		var one []bpf.Instruction
		var ends []int // tests, each of which leaves this case if it is false
		for _, t := range when {
			if t.offset() != loaded {
				one = append(one, bpf.LoadAbsolute{Off: t.offset(), Size: 4})
				loaded = t.offset()
			}
			if t.mask != all {
				one = append(one, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
				loaded = 0
			}
			ends = append(ends, len(one))
			one = append(one, nil)
		}
		one = append(one, bpf.RetConstant{Val: retAllow})
		for i, at := range ends {
			one[at] = bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: when[i].value, SkipTrue: uint8(len(one) - at - 1)}
		}
		if len(when) > 1 {
			loaded = 0 // which of the tests was false is not known
		}
		body = append(body, one...)
	}
	return append(body, bpf.RetConstant{Val: retError(r.otherwise)})
}
