package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// download answers GET /files.
func (s *Service) download(w http.ResponseWriter, r *http.Request) {
	c, q := callOf(r.Context()), r.URL.Query()
	if err := c.admitFile(r, q, time.Now()); err != nil {
		writeError(w, http.StatusUnauthorized, err.Error())
		return
	}
	if q.Has("username") {
		c.as(q.Get("username"))
	}
	f, err := c.file(r.Context(), q.Get("path"))
	if err != nil {
		fail(w, err)
		return
	}
	f.serve(w, r)
}

// file finds the file that is to be read.
func (c *call) file(ctx context.Context, given string) (*file, error) {
	name, err := c.path(ctx, given)
	if err != nil {
		return nil, err
	}
	info, err := c.host.StatFile(ctx, c.id(), name)
	if err == nil {
		info, err = c.follow(ctx, info)
	}
	switch {
	case isCode(err, sandbox.NotFound):
		return nil, &sandbox.Error{Code: sandbox.NotFound, Message: fmt.Sprintf("path '%s' does not exist", name)}
	case err != nil:
		return nil, err
	case info.Mode.IsDir():
		return nil, &sandbox.Error{Code: sandbox.InvalidArgument, Message: fmt.Sprintf("path '%s' is a directory", name)}
	case !info.Mode.IsRegular():
		return nil, &sandbox.Error{Code: sandbox.InvalidArgument, Message: fmt.Sprintf("path '%s' is not a regular file", name)}
	}
	read := func(ctx context.Context, offset, length int64, w io.Writer) error {
		return c.host.ReadFile(ctx, c.id(), name, offset, length, w)
	}
	return &file{ctx: ctx, read: read, name: path.Base(name), modified: info.ModTime, size: max(info.Size, 0)}, nil
}

// file is a file in a sandbox, as an io.ReadSeeker: what is read between two
// seeks is one stream from the guest.
type file struct {
	ctx      context.Context
	read     func(ctx context.Context, offset, length int64, w io.Writer) error
	name     string
	modified time.Time
	size     int64

	at     int64
	stream *io.PipeReader
	failed error // of reading, other than the end
}

// serve sends the file as the request wants it. Ranges are of the file itself, so
// they are not compressed. Nor is what goes to a client that would take several
// codings: HTTP libraries ask for all they know, and over a short way compressing
// takes longer than sending.
func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	defer f.Close()
	accept := accepted(r.Header.Get("Accept-Encoding"))
	partial := isPartial(r)
	if !accept.identity && (partial || !accept.gzip) {
		writeError(w, http.StatusNotAcceptable, "no acceptable encoding found, supported: gzip and, for ranges and conditions, identity")
		return
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": text(f.name)}))
	h.Set("Content-Type", contentType(f.name))
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case !partial && (accept.only || !accept.identity):
		h.Set("Content-Encoding", "gzip")
		f.all(w, r, true)
	case !partial && f.size == 0: // files of the kernel have contents but no size
		f.all(w, r, false)
	default:
		http.ServeContent(w, r, f.name, f.modified, f)
		if f.failed != nil { // its size is promised
			panic(http.ErrAbortHandler)
		}
	}
}

func isPartial(r *http.Request) bool {
	for _, name := range []string{"Range", "If-Range", "If-Modified-Since", "If-Unmodified-Since", "If-Match", "If-None-Match"} {
		if r.Header.Get(name) != "" {
			return true
		}
	}
	return false
}

func contentType(name string) string {
	if kind := mime.TypeByExtension(path.Ext(name)); kind != "" {
		return kind
	}
	return "application/octet-stream"
}

// all sends the file to its end, wherever that is.
func (f *file) all(w http.ResponseWriter, r *http.Request, compress bool) {
	if r.Method == http.MethodHead {
		return
	}
	begun := &firstWrite{w: w}
	var out io.Writer = begun
	finish := func() error { return nil }
	if compress {
		z, err := gzip.NewWriterLevel(begun, gzip.BestSpeed)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		out, finish = z, z.Close
	}
	err := f.read(f.ctx, 0, -1, out)
	if err == nil {
		err = finish()
	}
	if err == nil {
		return
	}
	if begun.done {
		panic(http.ErrAbortHandler) // so that nobody takes what there is for the file
	}
	w.Header().Del("Content-Encoding")
	fail(w, err)
}

// firstWrite tells whether there was one, after which it is too late for a status.
type firstWrite struct {
	w    io.Writer
	done bool
}

func (f *firstWrite) Write(b []byte) (int, error) {
	f.done = true
	return f.w.Write(b)
}

func (f *file) Read(b []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	if f.stream == nil {
		r, w := io.Pipe()
		f.stream = r
		offset := f.at
		go func() { w.CloseWithError(f.read(f.ctx, offset, f.size-offset, w)) }()
	}
	n, err := f.stream.Read(b)
	f.at += int64(n)
	if err != nil {
		if errors.Is(err, io.EOF) && f.at < f.size {
			err = io.ErrUnexpectedEOF
		}
		if !errors.Is(err, io.EOF) {
			f.failed = err
		}
	}
	return n, err
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, errors.New("seeking to before the beginning of a file")
	}
	if offset != f.at {
		f.Close()
		f.at = offset
	}
	return offset, nil
}

// Close ends the stream from the guest.
func (f *file) Close() error {
	if f.stream != nil {
		f.stream.Close()
		f.stream = nil
	}
	return nil
}
