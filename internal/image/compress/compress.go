// Package compress opens the compressed streams that packages, kernels and
// modules come in, with one limit on the memory that a stream may ask for.
package compress

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// maxWindow is the largest window that a stream may use, in bytes. It is what
// the strongest presets of the compressors in use need.
const maxWindow = 128 << 20

// ErrUnknown is wrapped by the error about a codec that is not supported.
var ErrUnknown = errors.New("compression is not supported")

// Open returns the unpacked bytes of r. codec is a file name suffix: "" for a
// stream that is not compressed, ".gz", ".xz" or ".zst". r may be read beyond
// the end of the stream. The length of what comes out is the caller's to limit.
func Open(r io.Reader, codec string) (io.ReadCloser, error) {
	var out io.ReadCloser
	var err error
	switch codec {
	case "":
		out = io.NopCloser(r)
	case ".gz":
		out, err = gzip.NewReader(r)
	case ".xz":
		var x *xz.Reader
		if x, err = xz.NewReader(r, maxWindow); err == nil {
			out = io.NopCloser(x)
		}
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err == nil {
			out = z.IOReadCloser()
		}
	default:
		err = ErrUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("opening a %.20q stream: %w", codec, err)
	}
	return out, nil
}

// ReadAll unpacks a whole stream of at most limit bytes; a longer one is an
// error.
func ReadAll(r io.Reader, codec string, limit int64) ([]byte, error) {
	in, err := Open(r, codec)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("unpacking a %.20q stream: %w", codec, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("unpacking a %.20q stream: more than %d bytes", codec, limit)
	}
	return data, nil
}
