// Package kerneltest makes small kernel images and modules for tests. It is
// imported by tests only.
package kerneltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
)

// Image returns a raw riscv64 kernel image of size bytes, at least 64, that is a
// header and zeros.
func Image(size int) []byte {
	img := make([]byte, size)
	copy(img, "MZ")
	binary.LittleEndian.PutUint64(img[8:], 2<<20)         // text_offset
	binary.LittleEndian.PutUint64(img[16:], uint64(size)) // image_size
	copy(img[48:], "RISCV")
	copy(img[56:], "RSC\x05")
	return img
}

// Module returns an ELF file as a module is: with the given modinfo entries, a
// text section of two instructions, one relocation that refers to a local
// label, a function and a global symbol, and stray local labels that nothing
// refers to.
func Module(stray int, modinfo ...string) []byte {
	var m module
	m.section(".text", elf.SHT_PROGBITS, elf.SHF_ALLOC|elf.SHF_EXECINSTR, 4, make([]byte, 8))
	info := []byte(strings.Join(modinfo, "\x00") + "\x00")
	m.section(".modinfo", elf.SHT_PROGBITS, elf.SHF_ALLOC, 1, info)

	strtab := []byte{0}
	var symtab bytes.Buffer
	symbol := func(name string, bind elf.SymBind, kind elf.SymType) {
		at := 0
		if name != "" {
			at = len(strtab)
			strtab = append(append(strtab, name...), 0)
		}
		binary.Write(&symtab, binary.LittleEndian, elf.Sym64{Name: uint32(at), Info: elf.ST_INFO(bind, kind), Shndx: 1})
	}
	binary.Write(&symtab, binary.LittleEndian, elf.Sym64{})
	for range stray {
		symbol(".Lstray", elf.STB_LOCAL, elf.STT_NOTYPE)
	}
	symbol(".Lused", elf.STB_LOCAL, elf.STT_NOTYPE)
	used := uint64(symtab.Len()/24 - 1)
	symbol("helper", elf.STB_LOCAL, elf.STT_FUNC)
	locals := uint32(symtab.Len() / 24)
	symbol("init_module", elf.STB_GLOBAL, elf.STT_FUNC)

	var rela bytes.Buffer
	binary.Write(&rela, binary.LittleEndian, elf.Rela64{Off: 4, Info: used<<32 | uint64(elf.R_RISCV_BRANCH)})
	// Sections are numbered from 1: .text, .modinfo, .rela.text, .symtab, .strtab.
	m.section(".rela.text", elf.SHT_RELA, elf.SHF_INFO_LINK, 8, rela.Bytes())
	m.table(24, 4, 1)
	m.section(".symtab", elf.SHT_SYMTAB, 0, 8, symtab.Bytes())
	m.table(24, 5, locals)
	m.section(".strtab", elf.SHT_STRTAB, 0, 1, strtab)
	return m.bytes()
}

// Sign appends what a module's signature looks like.
func Sign(module []byte) []byte {
	signature := bytes.Repeat([]byte{0xa5}, 100)
	module = append(bytes.Clone(module), signature...)
	module = append(module, make([]byte, 8)...)
	module = binary.BigEndian.AppendUint32(module, uint32(len(signature)))
	return append(module, "~Module signature appended~\n"...)
}

// module collects the sections of an ELF file.
type module struct {
	body     []byte // behind the header
	names    []byte
	sections []elf.Section64
}

const headerSize = 64

func (m *module) section(name string, kind elf.SectionType, flags elf.SectionFlag, align uint64, data []byte) {
	if m.sections == nil {
		m.names = []byte{0}
		m.sections = []elf.Section64{{}}
	}
	for uint64(headerSize+len(m.body))%align != 0 {
		m.body = append(m.body, 0)
	}
	m.sections = append(m.sections, elf.Section64{
		Name: uint32(len(m.names)), Type: uint32(kind), Flags: uint64(flags),
		Off: uint64(headerSize + len(m.body)), Size: uint64(len(data)), Addralign: align,
	})
	m.names = append(append(m.names, name...), 0)
	m.body = append(m.body, data...)
}

// table says that the last section is a table with entries of size bytes.
func (m *module) table(size uint64, link, info uint32) {
	last := &m.sections[len(m.sections)-1]
	last.Entsize, last.Link, last.Info = size, link, info
}

func (m *module) bytes() []byte {
	const own = ".shstrtab"
	m.section(own, elf.SHT_STRTAB, 0, 1, append(bytes.Clone(m.names), own+"\x00"...))
	for len(m.body)%8 != 0 {
		m.body = append(m.body, 0)
	}
	header := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_RISCV), Version: 1,
		Shoff: uint64(headerSize + len(m.body)), Ehsize: headerSize,
		Shentsize: 64, Shnum: uint16(len(m.sections)), Shstrndx: uint16(len(m.sections) - 1),
	}
	copy(header.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	var out bytes.Buffer
	binary.Write(&out, binary.LittleEndian, header)
	out.Write(m.body)
	binary.Write(&out, binary.LittleEndian, m.sections)
	return out.Bytes()
}
