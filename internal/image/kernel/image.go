package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image/compress"
)

const maxImage = 256 << 20 // bytes of a kernel image, unpacked

// ErrKernel is wrapped by errors about a package that holds no usable kernel.
var ErrKernel = errors.New("no usable kernel")

// decodeImage returns the raw image in a kernel file, however it is wrapped.
func decodeImage(file []byte) ([]byte, error) {
	payload, codec, err := unwrap(file)
	if err != nil {
		return nil, err
	}
	raw := payload
	if codec != "" {
		if raw, err = compress.ReadAll(bytes.NewReader(payload), codec, maxImage); err != nil {
			return nil, fmt.Errorf("%w: kernel image: %w", ErrKernel, err)
		}
	}
	if isBzImage(file) {
		return raw, boot.CheckELF(raw)
	}
	if _, err := boot.ParseImage(raw, int64(len(raw))); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKernel, err)
	}
	return raw, nil
}

// zbootCodecs maps the names that zboot files use to those of package compress.
var zbootCodecs = map[string]string{
	"gzip": ".gz", "zstd": ".zst", "zstd22": ".zst", "xz": ".xz", "xzkern": ".xz",
}

// unwrap finds the payload in a kernel file; codec is empty when it is not
// compressed.
func unwrap(file []byte) (payload []byte, codec string, err error) {
	if bytes.HasPrefix(file, []byte("\x1f\x8b")) {
		return file, ".gz", nil
	}
	if isBzImage(file) {
		return unwrapBzImage(file)
	}
	if len(file) < boot.HeaderSize || string(file[:2]) != "MZ" || string(file[4:8]) != "zimg" {
		return file, "", nil
	}
	// EFI zboot: "MZ", padding, "zimg", payload offset and size, two reserved
	// words, and the compression's name as a NUL-terminated string.
	offset := uint64(binary.LittleEndian.Uint32(file[8:]))
	size := uint64(binary.LittleEndian.Uint32(file[12:]))
	if offset+size > uint64(len(file)) {
		return nil, "", fmt.Errorf("%w: the zboot payload ends at %d, the file at %d", ErrKernel, offset+size, len(file))
	}
	name, _, _ := bytes.Cut(file[24:56], []byte{0})
	codec, ok := zbootCodecs[string(name)]
	if !ok {
		return nil, "", fmt.Errorf("%w: zboot image with compression %q, which is not supported", ErrKernel, name)
	}
	return file[offset : offset+size], codec, nil
}

// Offsets in the setup header of an x86 kernel file (the kernel's
// Documentation/arch/x86/boot, "The Real-Mode Kernel Header").
const (
	setupSectors    = 0x1f1
	setupMagic      = 0x202 // "HdrS"
	setupVersion    = 0x206
	payloadOffset   = 0x248 // from the protected-mode part on
	payloadLength   = 0x24c
	setupHeaderSize = 0x250

	sectorSize     = 512
	payloadVersion = 0x208 // of the boot protocol, the first with a payload
)

func isBzImage(file []byte) bool {
	return len(file) >= setupHeaderSize && string(file[setupMagic:setupMagic+4]) == "HdrS"
}

// payloadCodecs maps what payloads begin with to the names of package compress.
var payloadCodecs = []struct{ magic, codec string }{
	{"\x1f\x8b", ".gz"}, {"\xfd7zXZ\x00", ".xz"}, {"\x28\xb5\x2f\xfd", ".zst"},
}

// unwrapBzImage finds the compressed ELF file in an x86 kernel file.
func unwrapBzImage(file []byte) (payload []byte, codec string, err error) {
	if v := binary.LittleEndian.Uint16(file[setupVersion:]); v < payloadVersion {
		return nil, "", fmt.Errorf("%w: boot protocol %d.%02d, which is too old", ErrKernel, v>>8, v&0xff)
	}
	sectors := uint64(file[setupSectors])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*sectorSize + uint64(binary.LittleEndian.Uint32(file[payloadOffset:]))
	end := start + uint64(binary.LittleEndian.Uint32(file[payloadLength:]))
	const trailer = 4 // the unpacked size, which the kernel's build appends
	if end > uint64(len(file)) || end < start+trailer {
		return nil, "", fmt.Errorf("%w: the payload is at %d to %d of a file of %d bytes", ErrKernel, start, end, len(file))
	}
	payload = file[start:end]
	for _, c := range payloadCodecs {
		if bytes.HasPrefix(payload, []byte(c.magic)) {
			return payload[:len(payload)-trailer], c.codec, nil
		}
	}
	return nil, "", fmt.Errorf("%w: the payload's compression (%x) is not supported", ErrKernel, payload[:trailer])
}
