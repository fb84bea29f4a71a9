package interp

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/riscvtest"
)

// benchmark reports how many millions of guest instructions per second an
// endless program executes.
func benchmark(b *testing.B, program func(p *riscvtest.Program)) {
	p := riscvtest.NewProgram()
	program(p)
	m, h := newTestMachine(b, riscvtest.ImageBase, riscvtest.ImageSize)
	if err := m.Memory.Write(riscvtest.ImageBase, image(b, p)); err != nil {
		b.Fatal(err)
	}
	h.PC = riscvtest.ImageBase
	h.Status |= hart.StatusFS
	var c CPU
	c.Attach(m, h)
	start := h.Retired
	for b.Loop() {
		c.Run(20_000)
	}
	b.ReportMetric(float64(h.Retired-start)/b.Elapsed().Seconds()/1e6, "MIPS")
}

// BenchmarkInteger is a loop of dependent and independent arithmetic.
func BenchmarkInteger(b *testing.B) {
	benchmark(b, func(p *riscvtest.Program) {
		p.Emit(
			isa.Inst{Op: isa.ADDI, Rd: 5, Rs1: 5, Imm: 3},
			isa.Inst{Op: isa.XOR, Rd: 6, Rs1: 6, Rs2: 5},
			isa.Inst{Op: isa.SLLI, Rd: 7, Rs1: 5, Imm: 13},
			isa.Inst{Op: isa.ADD, Rd: 10, Rs1: 10, Rs2: 7},
			isa.Inst{Op: isa.SRLI, Rd: 11, Rs1: 6, Imm: 7},
			isa.Inst{Op: isa.SUB, Rd: 12, Rs1: 12, Rs2: 11},
			isa.Inst{Op: isa.AND, Rd: 13, Rs1: 12, Rs2: 10},
			isa.Inst{Op: isa.SLTU, Rd: 14, Rs1: 13, Rs2: 5},
			isa.Inst{Op: isa.ADDIW, Rd: 15, Rs1: 14, Imm: 1},
			isa.Inst{Op: isa.BNE, Rs1: 15, Rs2: 0, Imm: -36},
		)
	})
}

// BenchmarkBranches is a generator of random numbers whose lowest bit decides between a
// multiplication and a division, as compilers lay it out: registers that are in memory at
// the borders of blocks, and a branch that no processor predicts.
func BenchmarkBranches(b *testing.B) {
	benchmark(b, func(p *riscvtest.Program) {
		const i, sum, x, t, limit = 5, 6, 7, 8, 10
		p.LI(x, 88172645)
		p.Emit(
			isa.Inst{Op: isa.ADDI, Rd: limit, Imm: -1},
			isa.Inst{Op: isa.JAL, Imm: 8},
			isa.Inst{Op: isa.ADDI, Rd: i, Rs1: i, Imm: 1}, // next
			isa.Inst{Op: isa.BGEU, Rs1: i, Rs2: limit, Imm: 68},
			isa.Inst{Op: isa.SLLI, Rd: t, Rs1: x, Imm: 13},
			isa.Inst{Op: isa.XOR, Rd: x, Rs1: x, Rs2: t},
			isa.Inst{Op: isa.SRLI, Rd: t, Rs1: x, Imm: 7},
			isa.Inst{Op: isa.XOR, Rd: x, Rs1: t, Rs2: x},
			isa.Inst{Op: isa.SLLI, Rd: t, Rs1: x, Imm: 17},
			isa.Inst{Op: isa.XOR, Rd: x, Rs1: t, Rs2: x},
			isa.Inst{Op: isa.ANDI, Rd: t, Rs1: x, Imm: 1},
			isa.Inst{Op: isa.BEQ, Rs1: t, Imm: 20},
			isa.Inst{Op: isa.ADDI, Rd: t, Imm: 31},
			isa.Inst{Op: isa.MUL, Rd: 9, Rs1: x, Rs2: t},
			isa.Inst{Op: isa.ADD, Rd: sum, Rs1: sum, Rs2: 9},
			isa.Inst{Op: isa.JAL, Imm: -52},
			isa.Inst{Op: isa.ORI, Rd: t, Rs1: i, Imm: 1},
			isa.Inst{Op: isa.DIVU, Rd: t, Rs1: x, Rs2: t},
			isa.Inst{Op: isa.XOR, Rd: sum, Rs1: sum, Rs2: t},
			isa.Inst{Op: isa.JAL, Imm: -68},
		)
	})
}

// BenchmarkMemory walks a buffer of 512 KiB with loads and stores.
func BenchmarkMemory(b *testing.B) {
	benchmark(b, func(p *riscvtest.Program) {
		p.LI(5, riscvtest.DataBase)
		p.LI(6, 0x7ffc0)
		p.LI(10, riscvtest.DataBase)
		p.Emit(
			isa.Inst{Op: isa.LD, Rd: 11, Rs1: 10, Imm: 0},
			isa.Inst{Op: isa.LW, Rd: 12, Rs1: 10, Imm: 8},
			isa.Inst{Op: isa.ADD, Rd: 13, Rs1: 11, Rs2: 12},
			isa.Inst{Op: isa.SD, Rs2: 13, Rs1: 10, Imm: 16},
			isa.Inst{Op: isa.LBU, Rd: 14, Rs1: 10, Imm: 25},
			isa.Inst{Op: isa.SW, Rs2: 14, Rs1: 10, Imm: 32},
			isa.Inst{Op: isa.ADDI, Rd: 15, Rs1: 15, Imm: 64},
			isa.Inst{Op: isa.AND, Rd: 15, Rs1: 15, Rs2: 6},
			isa.Inst{Op: isa.ADD, Rd: 10, Rs1: 5, Rs2: 15},
			isa.Inst{Op: isa.JAL, Imm: -36},
		)
	})
}

// BenchmarkCalls calls a function in another page.
func BenchmarkCalls(b *testing.B) {
	benchmark(b, func(p *riscvtest.Program) {
		p.Emit(
			isa.Inst{Op: isa.ADDI, Rd: 10, Rs1: 10, Imm: 1},
			isa.Inst{Op: isa.JAL, Rd: 1, Imm: 4096 - 4},
			isa.Inst{Op: isa.JAL, Imm: -8},
		)
		for p.PC() < riscvtest.ImageBase+4096 {
			p.Raw(1)
		}
		p.Emit(isa.Inst{Op: isa.ADDI, Rd: 11, Rs1: 10, Imm: 1}, isa.Inst{Op: isa.JALR, Rs1: 1})
	})
}

// BenchmarkFloat multiplies and adds doubles.
func BenchmarkFloat(b *testing.B) {
	benchmark(b, func(p *riscvtest.Program) {
		p.Emit(
			isa.Inst{Op: isa.FCVT_D_W, Rd: 1, Rs1: 5, RM: isa.DYN},
			isa.Inst{Op: isa.FADD_D, Rd: 2, Rs1: 2, Rs2: 1, RM: isa.DYN},
			isa.Inst{Op: isa.FMUL_D, Rd: 3, Rs1: 2, Rs2: 1, RM: isa.DYN},
			isa.Inst{Op: isa.FMADD_D, Rd: 4, Rs1: 3, Rs2: 2, Rs3: 1, RM: isa.DYN},
			isa.Inst{Op: isa.FLT_D, Rd: 6, Rs1: 3, Rs2: 4},
			isa.Inst{Op: isa.ADDI, Rd: 5, Rs1: 5, Imm: 1},
			isa.Inst{Op: isa.JAL, Imm: -24},
		)
	})
}

// BenchmarkHash is sixteen rounds of SHA-256 as compilers emit them for a CPU without Zbb:
// straight lines, two dozen registers, and rotations of three instructions.
func BenchmarkHash(b *testing.B) {
	benchmark(b, func(p *riscvtest.Program) {
		const words, t1, t2, t3, t4 = 31, 5, 6, 14, 15
		p.LI(words, riscvtest.DataBase)
		p.LI(riscvtest.RegStack, riscvtest.DataBase+4096)
		start := p.PC()
		op := func(op isa.Op, rd, rs1, rs2 uint8) { p.Emit(isa.Inst{Op: op, Rd: rd, Rs1: rs1, Rs2: rs2}) }
		rotate := func(rd, rs, t uint8, n int32) {
			p.Emit(isa.Inst{Op: isa.SRLIW, Rd: rd, Rs1: rs, Imm: n}, isa.Inst{Op: isa.SLLIW, Rd: t, Rs1: rs, Imm: 32 - n})
			op(isa.OR, rd, rd, t)
		}
		sigma := func(rs uint8, x, y, z int32) {
			rotate(t1, rs, t2, x)
			rotate(t3, rs, t4, y)
			op(isa.XOR, t1, t1, t3)
			rotate(t3, rs, t4, z)
			op(isa.XOR, t1, t1, t3)
		}
		state := []uint8{10, 11, 18, 19, 20, 21, 22, 23}
		for i := range int32(16) {
			s := func(k int) uint8 { return state[(k+8-int(i)%8)%8] }
			sigma(s(4), 6, 11, 25)
			op(isa.AND, t2, s(4), s(5))
			p.Emit(
				isa.Inst{Op: isa.XORI, Rd: t3, Rs1: s(4), Imm: -1},
				isa.Inst{Op: isa.LW, Rd: 28, Rs1: words, Imm: 4 * i},
				isa.Inst{Op: isa.LW, Rd: 29, Rs1: riscvtest.RegStack, Imm: 4 * i},
			)
			op(isa.AND, t3, t3, s(6))
			op(isa.XOR, t2, t2, t3)
			for _, t := range []uint8{t1, t2, 28, 29} {
				op(isa.ADDW, s(7), s(7), t)
			}
			op(isa.ADDW, s(3), s(3), s(7))
			sigma(s(0), 2, 13, 22)
			op(isa.XOR, t2, s(0), s(1))
			op(isa.AND, t3, s(0), s(1))
			op(isa.AND, t2, t2, s(2))
			op(isa.XOR, t2, t2, t3)
			op(isa.ADDW, t1, t1, t2)
			op(isa.ADDW, s(7), s(7), t1)
		}
		p.Emit(isa.Inst{Op: isa.JAL, Imm: int32(start - p.PC())})
	})
}
