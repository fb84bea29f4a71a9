package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// manifestName is the name of the first member.
const manifestName = "manifest.json"

// window is the zstd window in bytes, the memory that unpacking needs. Readers
// refuse larger ones.
const window = 8 << 20

// NewCompressor returns a compressor with the parameters of packs. Equal input
// gives equal output, on any host.
func NewCompressor(w io.Writer) (*zstd.Encoder, error) {
	// Two goroutines: one finds matches while the other encodes those of the block
	// before. More would need tens of MiB each.
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(window),
		zstd.WithEncoderConcurrency(2), zstd.WithEncoderCRC(true))
}

// NewDecompressor returns a decompressor that refuses what would take more
// memory than a pack may. The length of what comes out is the caller's to limit.
func NewDecompressor(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(2))
}

// Write writes a snapshot as a pack. The pack does not depend on the host or on
// when it is made. progress may be nil.
func Write(ctx context.Context, w io.Writer, m *snapshot.Manifest, from Source, progress Progress) error {
	head, err := EncodeManifest(m)
	if err != nil {
		return err
	}
	parts, err := Parts(m)
	if err != nil {
		return err
	}
	z, err := NewCompressor(w)
	if err != nil {
		return fmt.Errorf("starting compression: %w", err)
	}
	t := tar.NewWriter(z)
	err = writeMember(t, manifestName, int64(len(head)), func(w io.Writer) error {
		_, err := w.Write(head)
		return err
	})
	count := NewCounter(progress, parts)
	for _, p := range parts {
		if err == nil {
			err = writeMember(t, p.Name, p.Size, func(w io.Writer) error { return copyPart(ctx, w, p, from, count) })
		}
	}
	if err != nil {
		z.Reset(nil) // ends its goroutines without finishing the stream
		return err
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return fmt.Errorf("writing pack: %w", err)
	}
	return ctx.Err()
}

func writeMember(t *tar.Writer, name string, size int64, fill func(io.Writer) error) error {
	// GNU headers hold sizes beyond 8 GiB and nothing that we do not set.
	h := &tar.Header{Format: tar.FormatGNU, Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}
	if err := t.WriteHeader(h); err != nil {
		return fmt.Errorf("writing %s to pack: %w", name, err)
	}
	if err := fill(t); err != nil {
		return fmt.Errorf("writing %s to pack: %w", name, err)
	}
	return nil
}

func copyPart(ctx context.Context, w io.Writer, p Part, from Source, count *Counter) error {
	r, err := from.Open(p)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(w, count.Reader(ctx, io.LimitReader(r, p.Size)))
	if err == nil && n != p.Size {
		err = fmt.Errorf("it has %d bytes, should have %d", n, p.Size)
	}
	return err
}
