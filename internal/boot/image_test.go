package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// header returns a valid header with one 8-byte field replaced.
func header(at int, value uint64) []byte {
	b := make([]byte, HeaderSize)
	binary.LittleEndian.PutUint64(b[8:], 2<<20)
	binary.LittleEndian.PutUint64(b[16:], 30<<20)
	copy(b[48:], "RISCV\x00\x00\x00RSC\x05")
	if at >= 0 {
		binary.LittleEndian.PutUint64(b[at:], value)
	}
	return b
}

func TestParseImage(t *testing.T) {
	const fileSize = 29 << 20
	start := func(s string) []byte { return append([]byte(s), make([]byte, HeaderSize)...) }
	for _, test := range []struct {
		name string
		head []byte
		size int64
		fail string
	}{
		{"good", header(-1, 0), fileSize, ""},
		{"good, longer head", append(header(-1, 0), 1, 2, 3), fileSize, ""},
		{"at the start of RAM", header(8, 0), fileSize, ""},
		{"no memory beyond the file", header(16, fileSize), fileSize, ""},
		{"big-endian", header(24, 1), fileSize, "big-endian"},
		{"odd load offset", header(8, 4096), fileSize, "load offset"},
		{"huge load offset", header(8, 1<<62), fileSize, "load offset"},
		{"smaller than its file", header(16, fileSize-1), fileSize, "needs"},
		{"no size", header(16, 0), fileSize, "needs"},
		{"huge size", header(16, 1<<63), fileSize, "needs"},
		{"empty", nil, 0, "no header"},
		{"cut", header(-1, 0)[:63], fileSize, "no header"},
		{"file shorter than head", header(-1, 0), 63, "no header"},
		{"elf", start("\x7fELF"), fileSize, "ELF file"},
		{"gzip", start("\x1f\x8b"), fileSize, "gzip"},
		{"zboot", start("MZ\x00\x00zimg"), fileSize, "zboot"},
		{"arm64", header(56, binary.LittleEndian.Uint64([]byte("ARMd\x00\x00\x00\x00"))), fileSize, "arm64"},
		{"other", make([]byte, 64), fileSize, "magic"},
	} {
		t.Run(test.name, func(t *testing.T) {
			img, err := ParseImage(test.head, test.size)
			if test.fail == "" {
				if err != nil || img.Size < uint64(test.size) {
					t.Fatalf("got %+v, %v", img, err)
				}
				return
			}
			if !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), test.fail) {
				t.Fatalf("error %q does not say %q", err, test.fail)
			}
		})
	}
	img, err := ParseImage(header(-1, 0), fileSize)
	if want := (Image{TextOffset: 2 << 20, Size: 30 << 20}); img != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", img, err, want)
	}
}

func FuzzParseImage(f *testing.F) {
	f.Add(header(-1, 0), int64(29<<20))
	f.Add(header(16, 1<<63), int64(1<<62))
	f.Add([]byte("MZ"), int64(-1))
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		img, err := ParseImage(head, size)
		if err != nil {
			return
		}
		if img.TextOffset%imageAlign != 0 || img.Size < uint64(size) || img.TextOffset+img.Size > 2*maxImageSize {
			t.Fatalf("accepted %+v for a file of %d bytes", img, size)
		}
		if !bytes.Contains(head, []byte(imageMagic)) {
			t.Fatal("accepted a file without the magic number")
		}
	})
}
