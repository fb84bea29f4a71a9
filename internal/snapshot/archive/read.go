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

// Read takes a pack in. It reads r to its end before it commits, so that an r
// which fails there (because a checksum is wrong, say) has its say. Errors of
// the pack itself wrap ErrBadPack; those of r, the sink and ctx are passed on.
// progress may be nil.
func Read(ctx context.Context, r io.Reader, to Sink, progress Progress) error {
	source := &sourceReader{ctx: ctx, r: r}
	z, err := NewDecompressor(source)
	if err != nil {
		return fmt.Errorf("starting decompression: %w", err)
	}
	defer z.Close()
	switch err = newReader(z).run(ctx, to, progress); {
	case err == nil || !errors.Is(err, ErrBadPack):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("reading pack: %w", context.Cause(ctx))
	case source.err != nil:
		// The pack is only as bad as what it is read from.
		return fmt.Errorf("reading pack: %w", source.err)
	}
	return err
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadPack}, args...)...)
}

// reader reads an unpacked tar stream.
type reader struct {
	limit *limitReader
	tar   *tar.Reader
}

func newReader(r io.Reader) *reader {
	limit := &limitReader{r: r}
	return &reader{limit, tar.NewReader(limit)}
}

func (in *reader) run(ctx context.Context, to Sink, progress Progress) (err error) {
	m, err := in.manifest()
	if err != nil {
		return err
	}
	parts, err := Parts(m)
	if err != nil {
		return err
	}
	imp, err := to(m)
	if err != nil {
		return err
	}
	count := NewCounter(progress, parts)
	for _, p := range parts {
		if err = in.part(ctx, p, imp, count); err != nil {
			break
		}
	}
	if err == nil {
		err = in.end()
	}
	if err != nil {
		return errors.Join(err, imp.Abort())
	}
	return imp.Commit()
}

// next goes to the next member, which has to be the one that is due.
func (in *reader) next(name string) (*tar.Header, error) {
	in.limit.left = maxHeader
	h, err := in.tar.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, bad("it ends before %s", name)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, bad("it is cut short before %s: %w", name, err)
	case name == manifestName && (errors.Is(err, zstd.ErrMagicMismatch) || errors.Is(err, tar.ErrHeader)):
		return nil, bad("it is no forkd pack")
	case err != nil:
		return nil, bad("reading the header of %s: %w", name, err)
	case h.Name != name:
		return nil, bad("it has %.80q where %s belongs", h.Name, name)
	case h.Typeflag != tar.TypeReg:
		return nil, bad("%s is not a regular file", name)
	}
	return h, nil
}

func (in *reader) manifest() (*snapshot.Manifest, error) {
	h, err := in.next(manifestName)
	if err != nil {
		return nil, err
	}
	if h.Size > MaxManifest {
		return nil, bad("its manifest has %d bytes, more than %d", h.Size, MaxManifest)
	}
	in.limit.left = padded(h.Size)
	b, err := io.ReadAll(in.tar)
	if err != nil {
		return nil, bad("reading its manifest: %w", err)
	}
	return DecodeManifest(b)
}

// part hands the next member, which has to be p, to the import.
func (in *reader) part(ctx context.Context, p Part, imp Import, count *Counter) error {
	h, err := in.next(p.Name)
	if err != nil {
		return err
	}
	if h.Size != p.Size {
		return bad("%s has %d bytes, its manifest says %d", p.Name, h.Size, p.Size)
	}
	in.limit.left = padded(p.Size)
	body := &bodyReader{r: count.Reader(ctx, in.tar)}
	if imp.Has(p) {
		_, err = io.Copy(io.Discard, body)
	} else if err = imp.Add(p, body); err == nil {
		_, err = io.Copy(io.Discard, body)
	}
	// An import that found the stream wanting may say so in its own words.
	if errors.Is(body.err, io.ErrUnexpectedEOF) {
		return bad("it is cut short in %s: %w", p.Name, body.err)
	}
	if body.err != nil {
		return bad("reading %s: %w", p.Name, body.err)
	}
	if err != nil {
		return fmt.Errorf("unpacking %s: %w", p.Name, err)
	}
	return nil
}

// end checks that nothing follows.
func (in *reader) end() error {
	in.limit.left = maxTail
	h, err := in.tar.Next()
	if err == nil {
		return bad("it has %.80q, which its manifest does not list", h.Name)
	}
	if !errors.Is(err, io.EOF) {
		return bad("reading its end: %w", err)
	}
	tail, err := io.ReadAll(in.limit)
	if err != nil {
		return bad("reading its end: %w", err)
	}
	for _, b := range tail {
		if b != 0 {
			return bad("it goes on behind its end")
		}
	}
	return nil
}

// Bytes of unpacked stream that may precede a member, and that may follow the
// last one: tar programs fill up with zeros.
const (
	maxHeader = 16 << 10
	maxTail   = 64 << 10
)

const tarBlock = 512

func padded(n int64) int64 { return (n + tarBlock - 1) &^ (tarBlock - 1) }

// errTooMuch is what a stream that unpacks to more than it declares fails with.
var errTooMuch = errors.New("it unpacks to more than it declares")

// limitReader is a stream that may have left more bytes.
type limitReader struct {
	r    io.Reader
	left int64
}

func (l *limitReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if l.left <= 0 {
		// The end may be exactly here.
		n, err := io.ReadFull(l.r, b[:1])
		if n > 0 {
			err = errTooMuch
		}
		return 0, err
	}
	n, err := l.r.Read(b[:min(int64(len(b)), l.left)])
	l.left -= int64(n)
	return n, err
}

// bodyReader remembers what reading a member failed with.
type bodyReader struct {
	r   io.Reader
	err error
}

func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// sourceReader remembers what reading a pack failed with, and fails once ctx
// ends.
type sourceReader struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *sourceReader) Read(b []byte) (int, error) {
	err := s.ctx.Err()
	n := 0
	if err == nil {
		n, err = s.r.Read(b)
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
