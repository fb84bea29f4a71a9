package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// spool is a file without a name, hashed as it was written: what is sent has to
// have a known length, and may have to be sent again.
type spool struct {
	file *os.File
	size int64
	sum  [sha256.Size]byte
}

// newSpool fills a spool in dir.
func newSpool(dir string, fill func(io.Writer) error) (*spool, error) {
	f, err := os.CreateTemp(dir, ".tmp-ship-*")
	if err != nil {
		return nil, fmt.Errorf("making room for what is to be sent: %w", err)
	}
	hash := sha256.New()
	// Unlinked at once, so that nothing is left of it whatever happens.
	if err = os.Remove(f.Name()); err == nil {
		err = fill(io.MultiWriter(f, hash))
	}
	size, seekErr := f.Seek(0, io.SeekCurrent)
	if err = errors.Join(err, seekErr); err != nil {
		f.Close()
		return nil, err
	}
	return &spool{f, size, [sha256.Size]byte(hash.Sum(nil))}, nil
}

func (s *spool) digest() string { return hex.EncodeToString(s.sum[:]) }

func (s *spool) close() { s.file.Close() }

// reader returns the contents from the beginning.
func (s *spool) reader() io.Reader { return io.NewSectionReader(s.file, 0, s.size) }

// pushURL packs a snapshot and puts it where u says.
func (c *Client) pushURL(ctx context.Context, u *url.URL, g grant, m *snapshot.Manifest, from archive.Source, progress Progress) (listing, error) {
	pack, err := newSpool(c.opts.Temp, func(w io.Writer) error {
		return archive.Write(ctx, w, m, from, progress.of(Packing))
	})
	if err != nil {
		return listing{}, fmt.Errorf("packing snapshot %q: %w", m.Tag, err)
	}
	defer pack.close()
	made := listing{pack.size, pack.digest()}
	for n := 1; ; n++ {
		err := c.put(ctx, u, g, pack, progress.of(Sending))
		if errors.Is(err, ErrExists) && c.holds(ctx, u, g, made) {
			// Sent by a try whose answer was lost, or long ago.
			return made, nil
		}
		var final *finalError
		switch {
		case err == nil:
			return made, nil
		case errors.As(err, &final):
			return made, fmt.Errorf("sending snapshot %q: %w", m.Tag, final.err)
		case n >= c.patience.tries, lasting(err, n > 1):
			return made, fmt.Errorf("sending snapshot %q: %w", m.Tag, err)
		}
		if err := c.patience.rest(ctx, n); err != nil {
			return made, err
		}
	}
}

// put sends a pack once.
func (c *Client) put(ctx context.Context, u *url.URL, g grant, pack *spool, progress func(done, total int64)) error {
	var sent atomic.Int64 // bytes that were handed over, since it last began
	body := func() (io.ReadCloser, error) {
		sent.Store(0)
		return io.NopCloser(&sendReader{ctx: ctx, r: pack.reader(), done: &sent, total: pack.size, progress: progress}), nil
	}
	first, _ := body()
	req, err := c.request(ctx, http.MethodPut, u, g, first)
	if err != nil {
		return &finalError{err}
	}
	req.ContentLength, req.GetBody = pack.size, body
	req.Header.Set("Content-Type", "application/zstd")
	req.Header.Set("Expect", "100-continue") // a server that refuses says so first
	req.Header.Set("If-None-Match", "*")
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return &finalError{context.Cause(ctx)}
		}
		return failure(u, err)
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode/100 == 2 && resp.Request.Method != http.MethodPut:
		return &finalError{failure(u, errors.New("it redirected to what takes no pack"))}
	case resp.StatusCode/100 == 2 && sent.Load() != pack.size:
		return &finalError{failure(u, errors.New("the server answered before it had the whole pack"))}
	case resp.StatusCode/100 == 2:
		return nil
	case passing(resp.StatusCode):
		return refusal(u, resp.StatusCode)
	case resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotImplemented:
		return &finalError{refused(u, ErrReadOnly, resp.StatusCode)}
	}
	return &finalError{refusal(u, resp.StatusCode)}
}

// holds reports whether u names exactly what was to be put there.
func (c *Client) holds(ctx context.Context, u *url.URL, g grant, made listing) bool {
	f := &fetch{client: c, ctx: ctx, url: u, grant: g, total: made.size}
	defer f.close()
	_, err := io.Copy(io.Discard, &checkedReader{r: f, hash: sha256.New(), want: made.sha256})
	return err == nil
}

// sendReader reports what is read from it as sent.
type sendReader struct {
	ctx      context.Context
	r        io.Reader
	done     *atomic.Int64
	total    int64
	progress func(done, total int64)
}

func (s *sendReader) Read(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.Read(b)
	s.progress(s.done.Add(int64(n)), s.total)
	return n, err
}
