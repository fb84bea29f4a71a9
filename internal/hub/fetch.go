package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// listing is what somebody has said of a pack; zero fields are unknown.
type listing struct {
	size   int64
	sha256 string
}

func (c *Client) pullURL(ctx context.Context, u *url.URL, want listing, g grant, to archive.Sink, progress Progress) error {
	f := &fetch{client: c, ctx: ctx, url: u, grant: g, total: -1}
	defer f.close()
	if want.size > 0 {
		f.total = want.size
	}
	var r io.Reader = f
	if want.sha256 != "" {
		r = &checkedReader{r: f, hash: sha256.New(), want: want.sha256}
	}
	if err := archive.Read(ctx, r, to, progress.of(Fetching)); err != nil {
		return fmt.Errorf("fetching %s: %w", show(u), err)
	}
	return nil
}

// fetch reads what a URL names. When the connection breaks it asks for the rest.
type fetch struct {
	client *Client
	ctx    context.Context
	url    *url.URL
	grant  grant

	body     io.ReadCloser           // of the present answer; nil: none
	stop     context.CancelCauseFunc // ends it
	watch    *time.Timer             // calls stop when nothing comes
	skip     int64                   // bytes of body that were read before
	at       int64                   // bytes that were read
	total    int64                   // bytes that there are, -1: unknown
	version  string                  // the validator that the answers have
	failures int                     // in a row
}

func (f *fetch) Read(b []byte) (int, error) {
	for {
		n, err := f.read(b)
		switch {
		case n > 0:
			f.failures = 0
			return n, nil
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && (f.total < 0 || f.at == f.total):
			return 0, io.EOF
		case errors.Is(err, io.EOF):
			err = failure(f.url, fmt.Errorf("it ended after %d of %d bytes", f.at, f.total))
		}
		f.close()
		var final *finalError
		if errors.As(err, &final) {
			return 0, final.err
		}
		if f.ctx.Err() != nil {
			return 0, context.Cause(f.ctx)
		}
		if f.failures++; f.failures >= f.client.patience.tries || lasting(err, f.at > 0) {
			return 0, err
		}
		if err := f.client.patience.rest(f.ctx, f.failures); err != nil {
			return 0, err
		}
	}
}

// finalError is an error that trying again does not mend.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// errIdle ends an answer that stands still.
var errIdle = errors.New("nothing came any more")

// read returns some of the present answer.
func (f *fetch) read(b []byte) (int, error) {
	if f.body == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	if f.skip > 0 {
		b = b[:min(int64(len(b)), f.skip)]
	}
	f.watch.Reset(f.client.patience.idle)
	n, err := f.body.Read(b)
	idle := !f.watch.Stop()
	switch {
	case err != nil && idle:
		err = failure(f.url, errIdle)
	case err != nil && !errors.Is(err, io.EOF):
		err = failure(f.url, err)
	}
	if f.skip > 0 {
		f.skip -= int64(n)
		return 0, err
	}
	if f.at += int64(n); f.total >= 0 && f.at > f.total {
		return 0, &finalError{failure(f.url, fmt.Errorf("it goes on after %d bytes", f.total))}
	}
	return n, err
}

// open asks for what has not been read yet.
func (f *fetch) open() error {
	ctx, stop := context.WithCancelCause(f.ctx)
	req, err := f.client.request(ctx, http.MethodGet, f.url, f.grant, nil)
	if err != nil {
		stop(nil)
		return &finalError{err}
	}
	if f.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", f.at))
		if f.version != "" {
			req.Header.Set("If-Range", f.version)
		}
	}
	resp, err := f.client.http.Do(req)
	if err != nil {
		stop(nil)
		return failure(f.url, err)
	}
	if err := f.accept(resp); err != nil {
		resp.Body.Close()
		stop(nil)
		return err
	}
	f.body, f.stop = resp.Body, stop
	f.watch = time.AfterFunc(f.client.patience.idle, func() { stop(errIdle) })
	return nil
}

// accept checks an answer.
func (f *fetch) accept(resp *http.Response) error {
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusPartialContent && f.at > 0:
	case passing(resp.StatusCode):
		return refusal(f.url, resp.StatusCode)
	default:
		return &finalError{refusal(f.url, resp.StatusCode)}
	}
	version, total, start := validator(resp.Header), resp.ContentLength, int64(0)
	if resp.StatusCode == http.StatusPartialContent {
		var ok bool
		if start, total, ok = contentRange(resp.Header.Get("Content-Range")); !ok || start != f.at {
			return &finalError{failure(f.url, fmt.Errorf("it answered with another range than it was asked for"))}
		}
	}
	if total >= 0 && f.total >= 0 && total != f.total {
		return &finalError{failure(f.url, fmt.Errorf("it has %d bytes, should have %d", total, f.total))}
	}
	if f.at > 0 && version != f.version {
		return &finalError{failure(f.url, errors.New("it changed while it was fetched; try again"))}
	}
	f.version = version
	if f.total < 0 {
		f.total = total
	}
	f.skip = f.at - start // a server that does not know ranges sends everything again
	return nil
}

// validator returns what tells one version of a resource from another.
func validator(h http.Header) string {
	// If-Range takes strong tags only.
	if tag := h.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		return tag
	}
	return h.Get("Last-Modified")
}

// contentRange reads "bytes 5-99/100".
func contentRange(s string) (start, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, size, ok2 := strings.Cut(s, "/")
	first, _, ok3 := strings.Cut(span, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	if total = -1; size != "*" {
		var err2 error
		total, err2 = strconv.ParseInt(size, 10, 64)
		err = errors.Join(err, err2)
	}
	return start, total, ok && ok2 && ok3 && err == nil && start >= 0 && total >= -1
}

func (f *fetch) close() {
	if f.body != nil {
		f.watch.Stop()
		f.body.Close()
		f.stop(nil)
		f.body = nil
	}
}

// checkedReader fails at the end if what was read has another hash.
type checkedReader struct {
	r    io.Reader
	hash hash.Hash
	want string
}

func (c *checkedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.hash.Write(b[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(c.hash.Sum(nil)) != c.want {
		err = fmt.Errorf("%w: its hash is not the one that the hub lists", archive.ErrBadPack)
	}
	return n, err
}
