// Package machinetest makes small riscv64 kernels for tests of machines.
package machinetest

import (
	"encoding/binary"

	"github.com/forkd-dev/forkd/internal/board"
	rv "github.com/forkd-dev/forkd/internal/riscv/isa"
)

// Where the programs are, and what they write to.
const (
	Entry    = board.RAMBase + 2<<20
	Counter  = board.RAMBase + 1<<20 // a word that Count increments
	StopFlag = Counter + 8           // a word in the same page, so that setting it moves nothing
)

// Registers by ABI name. S0 and S1 hold Counter and StopFlag when a program begins.
const (
	Zero = 0
	T0   = 5
	T1   = 6
	S0   = 8
	S1   = 9
)

// Kernel makes a bootable image of a program.
func Kernel(program func(a *rv.Asm)) []byte {
	a := rv.NewAsm(Entry)
	a.J(Zero, "start")
	a.Raw32(0)
	head := binary.LittleEndian.AppendUint64(nil, 2<<20)               // load offset
	head = binary.LittleEndian.AppendUint64(head, 64<<10)              // size in memory
	head = append(head, make([]byte, 24)...)                           // flags, version, reserved
	head = append(head, "RISCV\x00\x00\x00RSC\x05\x00\x00\x00\x00"...) // magic numbers
	for i := 0; i < len(head); i += 4 {
		a.Raw32(binary.LittleEndian.Uint32(head[i:]))
	}
	a.Label("start")
	a.LI(S0, Counter)
	a.LI(S1, StopFlag)
	program(a)
	return a.Bytes()
}

// PowerOff asks the power device.
func PowerOff(a *rv.Asm, value uint64) {
	a.LI(T0, board.PowerBase)
	a.LI(T1, value)
	a.S(rv.SW, T1, 0, T0)
	a.Label("off")
	a.J(Zero, "off")
}

// Count counts until the stop flag is set.
func Count(a *rv.Asm) {
	a.Label("loop")
	a.I(rv.LD, T0, S0, 0)
	a.I(rv.ADDI, T0, T0, 1)
	a.S(rv.SD, T0, 0, S0)
	a.I(rv.LD, T1, S1, 0)
	a.B(rv.BEQ, T1, Zero, "loop")
	PowerOff(a, board.PowerOff)
}
