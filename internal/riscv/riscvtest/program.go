// Package riscvtest generates guest programs for tests: by them, CPUs are
// compared with an oracle and with each other.
//
// What is generated depends on the given source of randomness only, so that a
// find can be repeated from its seed.
package riscvtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// A program is one image at ImageBase, code first, that may be read, written
// and executed everywhere. It runs in either privileged mode without
// translation, or as a Linux process.
const (
	ImageBase = 0x10000
	DataBase  = 0x40_0000
	DataSize  = 0x10_0000
	ImageSize = DataBase + DataSize - ImageBase

	// ScratchBase is where random code loads from and stores to.
	ScratchBase = DataBase
	ScratchSize = 0x4000
	// ResultBase is where results may be put.
	ResultBase = ScratchBase + ScratchSize
)

// Registers that random code does not write to.
const (
	RegStack   = 2  // in the middle of the scratch area, for compressed accesses
	RegScratch = 8  // likewise, and reachable for compressed accesses as well
	RegAligned = 9  // 64-byte aligned
	RegData    = 31 // where the program reads operands and puts results
)

// Program builds an image.
type Program struct {
	Code []byte
	Data []byte // at DataBase
}

// NewProgram returns a program without code whose data is zero.
func NewProgram() *Program { return &Program{Data: make([]byte, DataSize)} }

// PC returns the address of the next instruction.
func (p *Program) PC() uint64 { return ImageBase + uint64(len(p.Code)) }

// Emit appends instructions of 32 bits.
func (p *Program) Emit(ins ...isa.Inst) {
	for _, in := range ins {
		p.Raw(isa.Encode(in))
	}
}

// Raw appends the bits of an instruction of either length.
func (p *Program) Raw(raw uint32) {
	if isa.Length(uint16(raw)) == 2 {
		p.Code = binary.LittleEndian.AppendUint16(p.Code, uint16(raw))
	} else {
		p.Code = binary.LittleEndian.AppendUint32(p.Code, raw)
	}
}

// LI loads a 32-bit constant that is not negative.
func (p *Program) LI(rd uint8, v uint32) {
	low := int32(v<<20) >> 20
	p.Emit(isa.Inst{Op: isa.LUI, Rd: rd, Imm: int32(v) - low}, isa.Inst{Op: isa.ADDIW, Rd: rd, Rs1: rd, Imm: low})
}

// A state is a block of words in the data: x0 to x31, f0 to f31, fcsr.
const (
	StateWords = 65
	StateSize  = 66 * 8
)

// PutState puts a state at addr in the data.
func (p *Program) PutState(addr uint32, words func(i int) uint64) {
	for i := range StateWords {
		binary.LittleEndian.PutUint64(p.Data[int(addr)-DataBase+8*i:], words(i))
	}
}

// LoadState appends code that fills all registers but RegData from the state at
// addr.
func (p *Program) LoadState(addr uint32) {
	p.LI(RegData, addr)
	p.Emit(isa.Inst{Op: isa.LD, Rd: 1, Rs1: RegData, Imm: 64 * 8}, isa.Inst{Op: isa.CSRRW, Rs1: 1, Imm: hart.CSRFcsr})
	for r := uint8(0); r < 32; r++ {
		p.Emit(isa.Inst{Op: isa.FLD, Rd: r, Rs1: RegData, Imm: 32*8 + int32(r)*8})
	}
	for r := uint8(1); r < RegData; r++ {
		p.Emit(isa.Inst{Op: isa.LD, Rd: r, Rs1: RegData, Imm: int32(r) * 8})
	}
}

// SaveState appends code that is the inverse.
func (p *Program) SaveState(addr uint32) {
	p.LI(RegData, addr)
	for r := uint8(0); r < 32; r++ {
		p.Emit(isa.Inst{Op: isa.FSD, Rs2: r, Rs1: RegData, Imm: 32*8 + int32(r)*8})
	}
	for r := uint8(0); r < RegData; r++ {
		p.Emit(isa.Inst{Op: isa.SD, Rs2: r, Rs1: RegData, Imm: int32(r) * 8})
	}
	p.Emit(isa.Inst{Op: isa.CSRRS, Rd: 1, Imm: hart.CSRFcsr}, isa.Inst{Op: isa.SD, Rs2: 1, Rs1: RegData, Imm: 64 * 8})
}

// Image returns the memory from ImageBase on.
func (p *Program) Image() ([]byte, error) {
	if len(p.Code) > DataBase-ImageBase {
		return nil, errors.New("program is too large")
	}
	img := make([]byte, ImageSize)
	copy(img, p.Code)
	copy(img[DataBase-ImageBase:], p.Data)
	return img, nil
}

// Listing disassembles code that lies at pc.
func Listing(code []byte, pc uint64) string {
	var b strings.Builder
	for i := 0; i+2 <= len(code); {
		raw := uint32(binary.LittleEndian.Uint16(code[i:]))
		if isa.Length(uint16(raw)) == 4 && i+4 <= len(code) {
			raw = binary.LittleEndian.Uint32(code[i:])
		}
		in := isa.Decode(raw)
		fmt.Fprintf(&b, "\t%#x\t%v\n", pc+uint64(i), in)
		i += int(in.Size)
	}
	return b.String()
}
