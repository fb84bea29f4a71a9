package warm

import (
	"bytes"
	"debug/elf"
	"testing"
)

func TestPollObject(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "riscv64": elf.EM_RISCV} {
		object, err := pollObject(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != machine || f.Type != elf.ET_DYN || len(f.Progs) != 4 {
			t.Errorf("%s: %+v", arch, f.FileHeader)
		}
		for _, p := range f.Progs {
			if p.Off+p.Filesz > uint64(len(object)) || p.Off%0x1000 != p.Vaddr%0x1000 {
				t.Errorf("%s: segment %+v in %d bytes", arch, p.ProgHeader, len(object))
			}
		}
	}
	if _, err := pollObject("vax"); err == nil {
		t.Error("there is code for a VAX")
	}
}
