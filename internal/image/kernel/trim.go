package kernel

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"iter"
	"slices"
)

// Sizes of ELF64 structures, in bytes.
const (
	elfHeaderSize  = 64
	elfSectionSize = 64
	elfSymbolSize  = 24
	elfRelaSize    = 24
)

// trim returns a module without the local symbols that nothing refers to. RISC-V
// objects carry one for every label the assembler saw, since the linker may move
// code: in ext4 they are 98 of 100 symbols and most of the file, and the kernel
// walks them all when it loads the module. Symbols of functions and data stay,
// so stack traces still have names.
//
// A module that is built in a way trim does not know is returned as it is.
func trim(module []byte) []byte {
	t := &trimmer{in: module}
	if !t.readSections() || !t.chooseSymbols() {
		return module
	}
	t.rewriteRelocations()
	return t.layout()
}

// section is a section header with the contents that go into the new file.
type section struct {
	elf.Section64
	data []byte // nil for sections without bytes in the file
}

type trimmer struct {
	in       []byte
	header   elf.Header64
	sections []section
	symtab   int      // index of the section
	renumber []uint32 // new number by old; meaningful for kept symbols
	kept     []bool
}

// readSections parses header and section table; false when they are not those
// of a relocatable file of the expected make.
func (t *trimmer) readSections() bool {
	if _, err := binary.Decode(t.in, binary.LittleEndian, &t.header); err != nil {
		return false
	}
	h := &t.header
	if !bytes.HasPrefix(h.Ident[:], []byte(elf.ELFMAG+"\x02\x01")) || elf.Type(h.Type) != elf.ET_REL ||
		h.Phnum != 0 || h.Shentsize != elfSectionSize || h.Shoff > uint64(len(t.in)) ||
		uint64(h.Shnum)*elfSectionSize > uint64(len(t.in))-h.Shoff {
		return false
	}
	t.sections = make([]section, h.Shnum)
	room := uint64(len(t.in)) // for all sections together: none may overlap
	for i := range t.sections {
		s := &t.sections[i]
		if _, err := binary.Decode(t.in[h.Shoff+uint64(i)*elfSectionSize:], binary.LittleEndian, &s.Section64); err != nil {
			return false
		}
		switch elf.SectionType(s.Type) {
		case elf.SHT_NULL, elf.SHT_NOBITS:
			continue
		case elf.SHT_SYMTAB:
			if t.symtab != 0 {
				return false
			}
			t.symtab = i
		case elf.SHT_PROGBITS, elf.SHT_STRTAB, elf.SHT_RELA, elf.SHT_NOTE:
		default:
			return false
		}
		if elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 || s.Size > room || s.Off > uint64(len(t.in))-s.Size ||
			s.Addralign > 1<<16 {
			return false
		}
		room -= s.Size
		s.data = t.in[s.Off : s.Off+s.Size]
	}
	return t.symtab != 0
}

// chooseSymbols makes the new symbol and string tables.
func (t *trimmer) chooseSymbols() bool {
	symtab := &t.sections[t.symtab]
	link := int(symtab.Link)
	if link >= len(t.sections) || elf.SectionType(t.sections[link].Type) != elf.SHT_STRTAB ||
		link == int(t.header.Shstrndx) || // names of sections must stay where they are
		len(symtab.data)%elfSymbolSize != 0 || len(symtab.data) == 0 {
		return false
	}
	t.kept = make([]bool, len(symtab.data)/elfSymbolSize)
	t.renumber = make([]uint32, len(t.kept))
	if !t.markReferenced() {
		return false
	}
	names := t.sections[link].data
	newNames := []byte{0}
	var newSymbols []byte
	locals := uint32(0)
	for i := range t.kept {
		raw := symtab.data[i*elfSymbolSize:][:elfSymbolSize]
		local := elf.ST_BIND(raw[4]) == elf.STB_LOCAL
		t.kept[i] = t.kept[i] || i == 0 || !local || elf.ST_TYPE(raw[4]) != elf.STT_NOTYPE
		if !t.kept[i] {
			continue
		}
		t.renumber[i] = uint32(len(newSymbols) / elfSymbolSize)
		if local {
			locals++
		}
		at := binary.LittleEndian.Uint32(raw)
		if uint64(at) >= uint64(len(names)) {
			return false
		}
		name, _, ok := bytes.Cut(names[at:], []byte{0})
		if !ok {
			return false
		}
		newAt := uint32(0)
		if len(name) > 0 {
			newAt = uint32(len(newNames))
			newNames = append(append(newNames, name...), 0)
		}
		newSymbols = append(binary.LittleEndian.AppendUint32(newSymbols, newAt), raw[4:]...)
	}
	symtab.data, symtab.Info = newSymbols, locals
	t.sections[link].data = newNames
	return true
}

// markReferenced keeps the symbols that relocations use.
func (t *trimmer) markReferenced() bool {
	for info := range t.relocations() {
		symbol := binary.LittleEndian.Uint32(info[4:])
		if uint64(symbol) >= uint64(len(t.kept)) {
			return false
		}
		t.kept[symbol] = true
	}
	for _, s := range t.sections {
		if elf.SectionType(s.Type) == elf.SHT_RELA && (int(s.Link) != t.symtab || len(s.data)%elfRelaSize != 0) {
			return false
		}
	}
	return true
}

// relocations yields the info field of each relocation: type, then symbol.
func (t *trimmer) relocations() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, s := range t.sections {
			if elf.SectionType(s.Type) != elf.SHT_RELA {
				continue
			}
			for rest := s.data; len(rest) >= elfRelaSize; rest = rest[elfRelaSize:] {
				if !yield(rest[8:16]) {
					return
				}
			}
		}
	}
}

// rewriteRelocations puts the new symbol numbers into copies of the relocation
// sections.
func (t *trimmer) rewriteRelocations() {
	for i := range t.sections {
		if s := &t.sections[i]; elf.SectionType(s.Type) == elf.SHT_RELA {
			s.data = slices.Clone(s.data)
		}
	}
	for info := range t.relocations() {
		binary.LittleEndian.PutUint32(info[4:], t.renumber[binary.LittleEndian.Uint32(info[4:])])
	}
}

// layout writes the sections in the order of the old file, then their table.
func (t *trimmer) layout() []byte {
	order := make([]int, 0, len(t.sections))
	for i := range t.sections {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.sections[a].Off, t.sections[b].Off) })
	out := make([]byte, elfHeaderSize, len(t.in))
	for _, i := range order {
		s := &t.sections[i]
		switch elf.SectionType(s.Type) {
		case elf.SHT_NULL:
		case elf.SHT_NOBITS:
			s.Off = uint64(len(out)) // has no bytes in the file, so no place to align
		default:
			out = align(out, s.Addralign)
			s.Off, s.Size = uint64(len(out)), uint64(len(s.data))
			out = append(out, s.data...)
		}
	}
	out = align(out, 8)
	t.header.Shoff = uint64(len(out))
	for _, s := range t.sections {
		out, _ = binary.Append(out, binary.LittleEndian, s.Section64)
	}
	if _, err := binary.Encode(out, binary.LittleEndian, t.header); err != nil {
		panic("BUG: ELF header does not fit: " + err.Error())
	}
	return out
}

func align(b []byte, to uint64) []byte {
	for to > 1 && uint64(len(b))%to != 0 {
		b = append(b, 0)
	}
	return b
}
