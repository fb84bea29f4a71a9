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
