package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderSize is how many bytes of a kernel file [ParseImage] needs.
const HeaderSize = 64

const (
	imageMagic   = "RSC\x05" // magic2 of the header, since version 0.2
	imageAlign   = 2 << 20   // RV64 kernels are loaded at a multiple of 2 MiB plus text_offset
	maxImageSize = 1 << 30   // far above any kernel; keeps sums below from overflowing
)

// ErrImage is wrapped by every error about a file that is no bootable kernel.
var ErrImage = errors.New("not a bootable riscv64 linux image")

// Image tells where a kernel goes. All values are in bytes.
type Image struct {
	// TextOffset is the distance from the start of RAM at which the file is
	// placed; a multiple of 2 MiB.
	TextOffset uint64
	// Size is what the kernel occupies from there on in memory: its file and the
	// zeroed data behind it. At least the file's size.
	Size uint64
}

// ParseImage reads the header of a raw kernel image (the kernel's
// Documentation/arch/riscv/boot-image-header): head are its first HeaderSize
// bytes or more, fileSize the length of the whole file. Errors wrap ErrImage and
// name what the file is instead, where that can be told.
func ParseImage(head []byte, fileSize int64) (Image, error) {
	if len(head) < HeaderSize || fileSize < HeaderSize {
		return Image{}, fmt.Errorf("%w: %d bytes hold no header", ErrImage, min(int64(len(head)), fileSize))
	}
	if string(head[56:60]) != imageMagic {
		return Image{}, fmt.Errorf("%w: %s", ErrImage, describe(head))
	}
	img := Image{
		TextOffset: binary.LittleEndian.Uint64(head[8:]),
		Size:       binary.LittleEndian.Uint64(head[16:]),
	}
	flags := binary.LittleEndian.Uint64(head[24:])
	switch {
	case flags&1 != 0:
		return Image{}, fmt.Errorf("%w: it is big-endian", ErrImage)
	case img.TextOffset%imageAlign != 0 || img.TextOffset > maxImageSize:
		return Image{}, fmt.Errorf("%w: load offset %#x is no multiple of 2 MiB up to 1 GiB", ErrImage, img.TextOffset)
	case img.Size < uint64(fileSize) || img.Size > maxImageSize:
		return Image{}, fmt.Errorf("%w: the header says it needs %d bytes of memory, the file has %d", ErrImage, img.Size, fileSize)
	}
	return img, nil
}

// describe says what a file without the magic number looks like.
func describe(head []byte) string {
	switch {
	case string(head[:4]) == "\x7fELF":
		return "it is an ELF file, not the raw image made from it"
	case string(head[:2]) == "\x1f\x8b":
		return "it is gzip-compressed"
	case string(head[:2]) == "MZ" && string(head[4:8]) == "zimg":
		return "it is an EFI zboot file"
	case string(head[56:60]) == "ARMd":
		return "it is an arm64 image"
	}
	return fmt.Sprintf("magic number is %q, not %q", head[56:60], imageMagic)
}
