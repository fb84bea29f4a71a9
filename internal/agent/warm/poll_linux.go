package warm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// Node.js offers no way to give OpenSSL's generator new entropy, and a copy of a process draws the same numbers. So it is made
// to load a shared object whose one function, which Node.js calls whenever it loads it, calls RAND_poll. It is small enough
// to be put together here:
//
//	0x0000  headers, symbols, hash table, relocation, code; mapped readable and executable
//	0x1000  dynamic section, address of RAND_poll; mapped writable
//
// The addresses in the file are those that it is linked at.

const (
	pollData = 0x1000 // where the writable part begins
	pollSlot = pollData + 16*12
	pollSize = pollSlot + 8
)

// pollCode is the function for each architecture: it keeps its second argument, calls what the slot says, and returns that
// argument. at is its own address.
var pollCode = map[string]struct {
	machine elf.Machine
	reloc   uint32 // that puts the address of a symbol into a word
	code    func(at uint32) []byte
}{
	"amd64": {elf.EM_X86_64, uint32(elf.R_X86_64_GLOB_DAT), func(at uint32) []byte {
		// push rsi; call [rip+slot]; pop rax; ret
		code := binary.LittleEndian.AppendUint32([]byte{0x56, 0xff, 0x15}, pollSlot-(at+7))
		return append(code, 0x58, 0xc3)
	}},
	"riscv64": {elf.EM_RISCV, uint32(elf.R_RISCV_64), func(at uint32) []byte {
		offset := pollSlot - (at + 12)
		high, low := (offset+0x800)>>12, offset&0xfff
		var code []byte
		for _, word := range []uint32{
			0xff010113,            // addi sp, sp, -16
			0x00113423,            // sd ra, 8(sp)
			0x00b13023,            // sd a1, 0(sp)
			0x00000297 | high<<12, // auipc t0, slot
			0x0002b283 | low<<20,  // ld t0, slot(t0)
			0x000280e7,            // jalr t0
			0x00013503,            // ld a0, 0(sp)
			0x00813083,            // ld ra, 8(sp)
			0x01010113,            // addi sp, sp, 16
			0x00008067,            // ret
		} {
			code = binary.LittleEndian.AppendUint32(code, word)
		}
		return code
	}},
}

// pollObject returns the shared object for an architecture by its Go name.
func pollObject(arch string) ([]byte, error) {
	target, known := pollCode[arch]
	if !known {
		return nil, fmt.Errorf("there is no code for %s that gives OpenSSL new entropy", arch)
	}
	const headers = 64 + 4*56
	names := "\x00RAND_poll\x00napi_register_module_v1\x00"
	symbols := uint64(headers)
	hash := symbols + 3*elf.Sym64Size
	relocation := hash + 4*6
	text := relocation + 24
	strings := text + 64
	b := new(bytes.Buffer)
	put := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(b, binary.LittleEndian, v) // into memory
		}
	}
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	header := elf.Header64{
		Ident: ident, Type: uint16(elf.ET_DYN), Machine: uint16(target.machine), Version: 1,
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 4, Shentsize: 64,
	}
	if target.machine == elf.EM_RISCV {
		header.Flags = 0x4 // floating-point arguments in double registers, as the programs that load it have them
	}
	end := strings + uint64(len(names))
	put(header,
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: end, Memsz: end, Align: 0x1000},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: pollData, Vaddr: pollData, Paddr: pollData, Filesz: pollSize - pollData, Memsz: pollSize - pollData, Align: 0x1000},
		elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: pollData, Vaddr: pollData, Paddr: pollData, Filesz: 16 * 12, Memsz: 16 * 12, Align: 8},
		elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	)
	code := target.code(uint32(text))
	function := byte(elf.STB_GLOBAL)<<4 | byte(elf.STT_FUNC)
	put(elf.Sym64{},
		elf.Sym64{Name: 1, Info: function},
		elf.Sym64{Name: 11, Info: function, Shndx: 1, Value: text, Size: uint64(len(code))},
		[]uint32{1, 3, 2, 0, 1, 0}, // one bucket, whose chain is 2, 1
		elf.Rela64{Off: pollSlot, Info: 1<<32 | uint64(target.reloc)},
		code)
	b.Write(make([]byte, int(strings)-b.Len()))
	b.WriteString(names)
	b.Write(make([]byte, pollData-b.Len()))
	for _, d := range []elf.Dyn64{
		{Tag: int64(elf.DT_HASH), Val: hash}, {Tag: int64(elf.DT_SYMTAB), Val: symbols}, {Tag: int64(elf.DT_SYMENT), Val: elf.Sym64Size},
		{Tag: int64(elf.DT_STRTAB), Val: strings}, {Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_RELA), Val: relocation}, {Tag: int64(elf.DT_RELASZ), Val: 24}, {Tag: int64(elf.DT_RELAENT), Val: 24},
		{Tag: int64(elf.DT_FLAGS), Val: uint64(elf.DF_BIND_NOW)},
	} {
		put(d)
	}
	b.Write(make([]byte, pollSize-b.Len()))
	return b.Bytes(), nil
}
