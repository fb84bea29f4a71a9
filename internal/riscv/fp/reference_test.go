package fp_test

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// check compares one instruction with the reference, starting with and without NX accrued: those take different paths.
func (in *instruction) check(t *testing.T, o operands, rm fp.Rounding) {
	t.Helper()
	want, wantFlags := in.want(o, rm)
	for _, start := range []fp.Flags{0, fp.NX, fp.DZ} {
		fl := start
		got := in.got(o, rm, &fl)
		if got != want || fl != start|wantFlags {
			t.Errorf("%s rm=%d flags=%#x %#x: got %#x flags %#x, want %#x flags %#x",
				in.name, rm, start, o[:len(in.operands)], got, fl, want, start|wantFlags)
		}
	}
}

func TestAgainstReference(t *testing.T) {
	for _, in := range instructions {
		t.Run(in.name, func(t *testing.T) {
			t.Parallel()
			cases := in.cases(5000)
			for _, rm := range in.modes() {
				for _, o := range cases {
					in.check(t, o, rm)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

func FuzzAgainstReference(f *testing.F) {
	for i, in := range instructions {
		o := in.cases(1)
		last := o[len(o)-1]
		f.Add(uint8(i), uint8(i%5), last[0], last[1], last[2])
	}
	f.Fuzz(func(t *testing.T, index, mode uint8, a, b, c uint64) {
		in := instructions[int(index)%len(instructions)]
		modes := in.modes()
		in.check(t, operands{a, b, c}, modes[int(mode)%len(modes)])
	})
}
