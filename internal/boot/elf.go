package boot

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
)

// ErrELF is wrapped by every error about a file that is no bootable ELF kernel.
var ErrELF = errors.New("not a bootable x86-64 linux kernel")

// CheckELF reports what keeps an ELF file from being an x86-64 kernel.
func CheckELF(file []byte) error {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrELF, err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%w: it is for %v", ErrELF, f.Machine)
	}
	return nil
}
