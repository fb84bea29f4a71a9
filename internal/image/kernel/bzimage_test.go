package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/forkd-dev/forkd/internal/boot"
)

// elfKernel is the least of an ELF file that is for a machine.
func elfKernel(machine elf.Machine) []byte {
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56, Shentsize: 64,
	}
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, h)
	return b.Bytes()
}

// bzImage wraps a payload as an x86 kernel file does.
func bzImage(payload []byte, size uint32) []byte {
	const sectors = 2
	file := make([]byte, (sectors+1)*sectorSize, (sectors+1)*sectorSize+len(payload))
	file[setupSectors] = sectors
	copy(file[setupMagic:], "HdrS")
	binary.LittleEndian.PutUint16(file[setupVersion:], 0x20f)
	binary.LittleEndian.PutUint32(file[payloadLength:], size)
	return append(file, payload...)
}

func packed(data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(data)
	z.Close()
	return binary.LittleEndian.AppendUint32(b.Bytes(), uint32(len(data))) // as the kernel's build does
}

func TestBzImage(t *testing.T) {
	kernel := elfKernel(elf.EM_X86_64)
	payload := packed(kernel)
	if got, err := decodeImage(bzImage(payload, uint32(len(payload)))); err != nil || !bytes.Equal(got, kernel) {
		t.Errorf("%d bytes, %v; want the kernel", len(got), err)
	}
	other := packed(elfKernel(elf.EM_AARCH64))
	for name, c := range map[string]struct {
		file []byte
		is   error
	}{
		"payload beyond the end": {bzImage(payload, uint32(len(payload))+1), ErrKernel},
		"no payload":             {bzImage(payload, 0), ErrKernel},
		"length that wraps":      {bzImage(payload, 1<<32-1), ErrKernel},
		"unknown compression":    {bzImage([]byte("LZMA and more"), 13), ErrKernel},
		"for another processor":  {bzImage(other, uint32(len(other))), boot.ErrELF},
		"not an ELF file":        {bzImage(packed([]byte("x")), uint32(len(packed([]byte("x"))))), boot.ErrELF},
	} {
		if _, err := decodeImage(c.file); !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := bzImage(payload, uint32(len(payload)))
	binary.LittleEndian.PutUint16(old[setupVersion:], 0x207)
	if _, err := decodeImage(old); !errors.Is(err, ErrKernel) {
		t.Errorf("an old protocol: %v", err)
	}
}
