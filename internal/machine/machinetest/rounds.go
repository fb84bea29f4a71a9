package machinetest

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd-dev/forkd/internal/board"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Rounds writes to this many pages, which lie behind that of Counter.
const RoundPages = 64

// Rounds goes round some pages and adds one to the first word of each. It reads before it writes,
// and if a word is not what it was in the round before the machine powers off as failed.
// Counter has the number of whole rounds.
func Rounds(a *rv.Asm) {
	const s2, s3, s4, s5 = 18, 19, 20, 21
	a.LI(s3, 0)
	a.LI(s5, 4096)
	a.Label("round")
	a.I(rv.ADDI, s3, s3, 1)
	a.LI(s2, Counter+4096)
	a.LI(s4, Counter+4096*(1+RoundPages))
	a.Label("page")
	a.I(rv.LD, T0, s2, 0)
	a.I(rv.ADDI, T0, T0, 1)
	a.B(rv.BNE, T0, s3, "bad")
	a.S(rv.SD, T0, 0, s2)
	a.R(rv.ADD, s2, s2, s5)
	a.B(rv.BNE, s2, s4, "page")
	a.S(rv.SD, s3, 0, S0)
	a.I(rv.LD, T1, S1, 0)
	a.B(rv.BEQ, T1, Zero, "round")
	PowerOff(a, board.PowerOff)
	a.Label("bad")
	a.LI(T0, board.PowerBase)
	a.LI(T1, 0x3333) // failed
	a.S(rv.SW, T1, 0, T0)
	a.Label("stay")
	a.J(Zero, "stay")
}

// CheckRounds compares memory with what Rounds leaves at some instant, and returns how many
// rounds that was. read returns the page that holds a GPA.
func CheckRounds(read func(gpa uint64) *[4096]byte) (rounds uint64, err error) {
	word := func(gpa uint64) uint64 { return binary.LittleEndian.Uint64(read(gpa)[gpa%4096:]) }
	rounds = word(Counter)
	ahead := true // pages that are written in the present round come first
	for i := range uint64(RoundPages) {
		switch v := word(Counter + 4096*(1+i)); {
		case v == rounds+1 && ahead:
		case v == rounds:
			ahead = false
		default:
			return rounds, fmt.Errorf("page %d has %d after %d rounds", i, v, rounds)
		}
	}
	return rounds, nil
}
