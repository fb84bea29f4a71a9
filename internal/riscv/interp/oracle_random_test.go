package interp

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// TestOracleSequences executes random sequences of all unprivileged
// instructions, compressed ones included, with memory accesses to a scratch area
// and forward branches.
func TestOracleSequences(t *testing.T) {
	programs := 12
	if testing.Short() {
		programs = 3
	}
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			testSequences(t, rand.New(rand.NewPCG(uint64(seed), 3)))
		})
	}
}

func testSequences(t *testing.T, rng *rand.Rand) {
	const sequences, length = 120, 60
	p := newProgram()
	for i := range scratchSize {
		p.data[i] = byte(rng.Uint32())
	}
	var listings []string
	at := uint32(resultBase)
	for range sequences {
		p.putState(at, func(i int) uint64 { return initialWord(rng, i) })
		p.loadState(at)
		start := len(p.code)
		randomCode(p, rng, length)
		listings = append(listings, listing(p.code[start:], imageBase+uint64(start)))
		p.saveState(at)
		at += stateSize
	}
	p.finish()
	p.compare(t, func(offset int) string {
		if offset < scratchSize {
			return fmt.Sprintf("scratch memory at %#x", offset)
		}
		i := offset - scratchSize
		return fmt.Sprintf("word %d after sequence %d:\n%s", i%stateSize/8, i/stateSize, listings[i/stateSize])
	})
}

func initialWord(rng *rand.Rand, i int) uint64 {
	switch {
	case i == regStack || i == regScratch:
		return scratchBase + scratchSize/2
	case i == regAligned:
		return scratchBase + scratchSize/4
	case i == 64:
		return uint64(rng.IntN(5)) << 5
	case i >= 32:
		if rng.IntN(2) == 0 {
			return interestingFloats[rng.IntN(len(interestingFloats))]
		}
	case rng.IntN(2) == 0:
		return interesting[rng.IntN(len(interesting))]
	}
	return rng.Uint64()
}

// randomCode appends n instructions.
func randomCode(p *program, rng *rand.Rand, n int) {
	ops := []isa.Op{}
	for op := isa.ILLEGAL + 1; op < isa.NumOps; op++ {
		if op < isa.CBO_ZERO && !oracleWrong(op) && op != isa.ECALL && op != isa.EBREAK {
			ops = append(ops, op)
		}
	}
	for n > 0 {
		if rng.IntN(3) == 0 {
			if raw, ok := randomCompressed(rng); ok {
				p.raw(uint32(raw))
				n--
			}
			continue
		}
		op := ops[rng.IntN(len(ops))]
		if randomWide(p, rng, op) {
			n--
		}
	}
}

func reserved(r uint8) bool {
	return r == regStack || r == regScratch || r == regAligned || r == regData
}

// randomWide appends an instruction with operation op, or nothing if its random
// operands will not do.
func randomWide(p *program, rng *rand.Rand, op isa.Op) bool {
	mask, bits := op.Pattern()
	in := isa.Decode(bits | rng.Uint32()&^mask)
	if in.Op != op {
		return false
	}
	if rd, _, _ := op.Float(); !rd && reserved(in.Rd) {
		return false
	}
	switch {
	case op >= isa.BEQ && op <= isa.BGEU:
		// Over the next instruction, of whatever length.
		branchOver(p, rng, in)
		return true
	case op == isa.JAL:
		branchOver(p, rng, in)
		return true
	case op == isa.JALR:
		// By way of a register that has the address of the AUIPC.
		p.emit(isa.Inst{Op: isa.AUIPC, Rd: 29})
		in.Rs1 = 29
		branchOver(p, rng, in)
		return true
	case op >= isa.CSRRW && op <= isa.CSRRCI:
		// The flags take any value; the rounding mode only legal ones, lest what
		// comes after is illegal.
		in.Imm = hart.CSRFflags
		if op == isa.CSRRWI && rng.IntN(2) == 0 {
			in.Imm, in.Rs1 = hart.CSRFrm, uint8(rng.IntN(5))
		}
	case op >= isa.LR_W && op <= isa.AMOMAXU_D:
		in.Rs1 = regAligned
		if rng.IntN(2) == 0 && (op == isa.SC_W || op == isa.SC_D) {
			lr := isa.Inst{Op: isa.LR_W, Rd: 5, Rs1: regAligned}
			if op == isa.SC_D {
				lr.Op = isa.LR_D
			}
			p.emit(lr)
		} else if op == isa.SC_W || op == isa.SC_D || op == isa.LR_W || op == isa.LR_D {
			return false // an SC without reservation: the oracle compares values
		}
	case op >= isa.LB && op <= isa.SD || op == isa.FLW || op == isa.FLD || op == isa.FSW || op == isa.FSD:
		in.Rs1 = [...]uint8{regStack, regScratch, regAligned}[rng.IntN(3)]
	}
	p.emit(in)
	return true
}

func branchOver(p *program, rng *rand.Rand, in isa.Inst) {
	var skipped program
	for range rng.IntN(4) {
		raw, ok := randomCompressed(rng)
		if !ok {
			raw = 1 // C.NOP
		}
		skipped.raw(uint32(raw))
	}
	in.Imm = 4 + int32(len(skipped.code))
	if in.Op == isa.JALR {
		in.Imm += 4
	}
	p.emit(in)
	p.code = append(p.code, skipped.code...)
}

// randomCompressed returns a compressed instruction that writes no reserved
// register, does not jump, and touches no memory but the scratch area.
func randomCompressed(rng *rand.Rand) (uint16, bool) {
	raw := uint16(rng.Uint32())
	if raw&3 == 3 {
		return 0, false
	}
	in := isa.Decode(uint32(raw))
	switch in.Op {
	case isa.ILLEGAL, isa.JAL, isa.JALR, isa.EBREAK, isa.BEQ, isa.BNE:
		return 0, false
	case isa.LW, isa.LD, isa.FLD, isa.SW, isa.SD, isa.FSD:
		if !reserved(in.Rs1) {
			return 0, false
		}
	}
	if rd, _, _ := in.Op.Float(); !rd && reserved(in.Rd) {
		return 0, false
	}
	return raw, true
}

func listing(code []byte, pc uint64) string {
	var b strings.Builder
	for i := 0; i+2 <= len(code); {
		raw := uint32(code[i]) | uint32(code[i+1])<<8
		if isa.Length(uint16(raw)) == 4 && i+4 <= len(code) {
			raw |= uint32(code[i+2])<<16 | uint32(code[i+3])<<24
		}
		in := isa.Decode(raw)
		fmt.Fprintf(&b, "\t%#x\t%v\n", pc+uint64(i), in)
		i += int(in.Size)
	}
	return b.String()
}
