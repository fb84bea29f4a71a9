package rootfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/erofs/go-erofs"
)

// blockSize is the EROFS block size. It equals the page size of every guest, so
// that a block of the uncompressed image is one page of its cache.
const blockSize = 4096

// WriteEROFS writes the tree as an uncompressed EROFS image with 4 KiB blocks.
// buildTime goes into the superblock; the same tree and buildTime give the same
// bytes. It stops with ctx's error when ctx ends; what is in out then is no
// image.
func (t *Tree) WriteEROFS(ctx context.Context, out io.WriteSeeker, buildTime time.Time) error {
	buffered := &seekWriter{ctx: ctx, out: out, buf: bufio.NewWriterSize(out, 1<<20)}
	w := erofs.Create(buffered, erofs.WithBlockSize(blockSize), erofs.WithBuildTime(uint64(buildTime.Unix()), 0))
	err := w.CopyFrom(view{t})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = buffered.buf.Flush()
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		err = ctxErr
	}
	if err != nil {
		return fmt.Errorf("writing the erofs image: %w", err)
	}
	return nil
}

// seekWriter batches the many small writes of the EROFS writer, which pads each
// file to a block of its own, and ends them when ctx does.
type seekWriter struct {
	ctx context.Context
	out io.WriteSeeker
	buf *bufio.Writer
}

func (s *seekWriter) Write(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.buf.Write(p)
}

func (s *seekWriter) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekCurrent {
		return 0, errors.New("seeking relative to a buffered position")
	}
	if err := s.buf.Flush(); err != nil {
		return 0, err
	}
	return s.out.Seek(offset, whence)
}
