package fp_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/fp"
)

// TestAgainstQEMU runs every instruction in every rounding mode on QEMU's user-mode emulator: a program made of one loop
// for each of them, over a table of operands, that writes results and flags to its standard output.
func TestAgainstQEMU(t *testing.T) {
	qemu, err := exec.LookPath("qemu-riscv64")
	if err != nil {
		t.Skip("qemu-riscv64 is not installed (Debian package qemu-user)")
	}
	type run struct {
		in    *instruction
		rm    fp.Rounding
		cases []operands
	}
	var p program
	var runs []run
	for _, in := range instructions {
		cases := in.cases(4000)
		table := p.addTable(cases)
		for _, rm := range in.modes() {
			p.addLoop(in, rm, table, len(cases))
			runs = append(runs, run{in, rm, cases})
		}
	}
	name := filepath.Join(t.TempDir(), "fp.elf")
	if err := os.WriteFile(name, p.link(), 0o700); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), qemu, name)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	total := 0
	for _, r := range runs {
		if len(out) < len(r.cases)*resultSize {
			t.Fatalf("output of qemu-riscv64 ends at %s rm=%d", r.in.name, r.rm)
		}
		r.in.compare(t, r.rm, r.cases, out)
		out = out[len(r.cases)*resultSize:]
		total += len(r.cases)
	}
	if len(out) != 0 {
		t.Errorf("%d bytes of output left over", len(out))
	}
	t.Logf("%d cases of %d instructions", total, len(instructions))
}

// compare checks the results that QEMU wrote to out.
func (in *instruction) compare(t *testing.T, rm fp.Rounding, cases []operands, out []byte) {
	t.Helper()
	failures := 0
	for i, o := range cases {
		want := binary.LittleEndian.Uint64(out[i*resultSize:])
		wantFlags := fp.Flags(out[i*resultSize+8])
		var fl fp.Flags
		got := in.got(o, rm, &fl)
		if got == want && fl == wantFlags {
			continue
		}
		t.Errorf("%s rm=%d %#x: got %#x flags %#x, QEMU %#x flags %#x",
			in.name, rm, o[:len(in.operands)], got, fl, want, wantFlags)
		if failures++; failures == 5 {
			return
		}
	}
}

// Layout of the program's memory: code and tables are loaded from the file, results are collected in zero pages.
const (
	codeBase    = 0x1_0000
	tableBase   = 0x100_0000
	resultBase  = 0x800_0000
	resultSpace = 0x10_0000
	operandSize = 24
	resultSize  = 16
)

// program assembles a static riscv64 executable.
type program struct {
	code   []byte
	tables []byte
}

// Registers that the program uses beside the operands in 10, 11, 12 and the result in 13.
const (
	regZero   = 0
	regTable  = 5
	regResult = 6
	regEnd    = 7
	regFlags  = 14
	regA0     = 10
	regA1     = 11
	regA2     = 12
	regA7     = 17
)

const csrFflags = 0x001

// addTable adds the operands of cases and returns their address.
func (p *program) addTable(cases []operands) int {
	at := tableBase + len(p.tables)
	for _, o := range cases {
		for _, v := range o {
			p.tables = binary.LittleEndian.AppendUint64(p.tables, v)
		}
	}
	return at
}

func (p *program) emit(word uint32) { p.code = binary.LittleEndian.AppendUint32(p.code, word) }

func (p *program) immediate(opcode, funct3, rd, rs1 uint32, imm int) {
	p.emit(uint32(imm)&0xfff<<20 | rs1<<15 | funct3<<12 | rd<<7 | opcode)
}

// load loads 8 bytes at regTable+offset into the register of the kind; singles are loaded with their boxes.
func (p *program) load(k kind, rd uint32, offset int) {
	opcode := uint32(0x07) // fld
	if k == xreg {
		opcode = 0x03 // ld
	}
	p.immediate(opcode, 3, rd, regTable, offset)
}

// store stores 8 bytes at regResult+offset.
func (p *program) store(k kind, rs2 uint32, offset int) {
	opcode := uint32(0x27) // fsd
	if k == xreg {
		opcode = 0x23 // sd
	}
	p.emit(rs2<<20 | regResult<<15 | 3<<12 | uint32(offset)<<7 | opcode)
}

// constant sets rd to v, which is below 2^31 - 2048 (lui, addi).
func (p *program) constant(rd uint32, v int) {
	p.emit(uint32(v+0x800)&^0xfff | rd<<7 | 0x37)
	p.immediate(0x13, 0, rd, rd, v)
}

// addLoop adds a loop that runs the instruction on n operands of the table at the given address, and a write system
// call for the results.
func (p *program) addLoop(in *instruction, rm fp.Rounding, table, n int) {
	if n*resultSize > resultSpace {
		panic("too many cases for the result area")
	}
	p.constant(regTable, table)
	p.constant(regEnd, table+n*operandSize)
	p.constant(regResult, resultBase)
	top := len(p.code)
	for i, k := range in.operands {
		p.load(k, uint32(10+i), i*8)
	}
	p.immediate(0x73, 1, regZero, regZero, csrFflags) // csrw fflags, zero
	p.emit(in.encode(rm))
	p.immediate(0x73, 2, regFlags, regZero, csrFflags) // csrr
	p.store(in.result, 13, 0)
	p.store(xreg, regFlags, 8)
	p.immediate(0x13, 0, regTable, regTable, operandSize)
	p.immediate(0x13, 0, regResult, regResult, resultSize)
	p.branchNotEqual(regTable, regEnd, top)

	const stdout, sysWrite = 1, 64
	p.constant(regA0, stdout)
	p.constant(regA1, resultBase)
	p.constant(regA2, n*resultSize)
	p.constant(regA7, sysWrite)
	p.emit(0x73) // ecall
}

// branchNotEqual branches back to the code offset target.
func (p *program) branchNotEqual(rs1, rs2 uint32, target int) {
	d := uint32(target - len(p.code))
	p.emit(d>>12&1<<31 | d>>5&0x3f<<25 | rs2<<20 | rs1<<15 | 1<<12 | d>>1&0xf<<8 | d>>11&1<<7 | 0x63)
}

// link ends the program with an exit system call and returns the executable.
func (p *program) link() []byte {
	const sysExit = 93
	p.constant(regA0, 0)
	p.constant(regA7, sysExit)
	p.emit(0x73)

	const align = 0x1000
	round := func(n int) int { return (n + align - 1) &^ (align - 1) }
	codeAt := align
	tablesAt := codeAt + round(len(p.code))
	segments := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: uint64(codeAt), Vaddr: codeBase,
			Filesz: uint64(len(p.code)), Memsz: uint64(len(p.code)), Align: align},
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Off: uint64(tablesAt), Vaddr: tableBase,
			Filesz: uint64(len(p.tables)), Memsz: uint64(len(p.tables)), Align: align},
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: 0, Vaddr: resultBase,
			Memsz: resultSpace, Align: align},
	}
	const floatABIDouble = 4
	header := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_RISCV), Version: uint32(elf.EV_CURRENT), Entry: codeBase,
		Phoff: 64, Flags: floatABIDouble, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(segments)), Shentsize: 64,
	}
	copy(header.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}))

	var file bytes.Buffer
	for _, part := range []any{&header, segments} {
		if err := binary.Write(&file, binary.LittleEndian, part); err != nil {
			panic(err) // the structures have fixed sizes
		}
	}
	file.WriteString(strings.Repeat("\x00", codeAt-file.Len()))
	file.Write(p.code)
	file.WriteString(strings.Repeat("\x00", tablesAt-file.Len()))
	file.Write(p.tables)
	return file.Bytes()
}
