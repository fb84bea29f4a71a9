package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	tries        = 3
	retryPause   = 200 * time.Millisecond // before the second try; doubled for the third
	stallTimeout = 30 * time.Second       // a download without a byte for that long is given up
)

// NewHTTPClient returns a client that gives up on a mirror that does not
// connect or answer. It has no limit for a whole download, which may be long;
// a download that stalls is ended by the reader.
func NewHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: stallTimeout,
		MaxIdleConnsPerHost:   downloads,
		IdleConnTimeout:       stallTimeout,
	}}
}

// retry calls try again when the network failed in a way that may pass.
func retry(ctx context.Context, try func() error) error {
	pause := retryPause
	for n := 1; ; n++ {
		err := try()
		if err == nil || n == tries || !errors.Is(err, ErrUnreachable) || isRefused(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// isRefused reports an error that a second try right away will not mend: no
// such host, or nothing listens there.
func isRefused(err error) bool {
	var dns *net.DNSError
	var op *net.OpError
	return errors.As(err, &dns) && !dns.IsTemporary || errors.As(err, &op) && op.Op == "dial" && !op.Timeout()
}

// download copies the file at path below the mirror to w. More than limit bytes
// are an error that wraps ErrHash, since the sizes come from the signed index.
func (c *Client) download(ctx context.Context, path string, w io.Writer, limit int64) error {
	link := c.Mirror + "/" + (&url.URL{Path: path}).EscapedPath()
	dctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(dctx, http.MethodGet, link, nil)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", link, err)
	}
	request.Header.Set("User-Agent", "forkd")
	answer, err := c.HTTP.Do(request)
	if err != nil {
		return unreachable(ctx, link, err)
	}
	defer answer.Body.Close()
	switch code := answer.StatusCode; {
	case code == http.StatusOK:
	case code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500:
		return unreachable(ctx, link, errors.New(answer.Status))
	default:
		return withHint(fmt.Errorf("fetching %s: %w: %s", link, ErrNotFound, answer.Status), "check that the mirror's URL is that of a whole Debian archive")
	}
	body := &stallReader{r: answer.Body, timer: time.AfterFunc(stallTimeout, func() { cancel(errStalled) })}
	defer body.timer.Stop()
	n, err := io.Copy(w, io.LimitReader(body, limit+1))
	switch {
	case body.err != nil:
		if errors.Is(context.Cause(dctx), errStalled) {
			body.err = errStalled
		}
		return unreachable(ctx, link, fmt.Errorf("after %d bytes: %w", n, body.err))
	case err != nil:
		return fmt.Errorf("fetching %s: %w", link, err)
	case n > limit:
		return withHint(fmt.Errorf("fetching %s: %w: longer than %d bytes", link, ErrHash, limit), updatingHint)
	}
	return nil
}

var errStalled = fmt.Errorf("no data for %v", stallTimeout)

// unreachable wraps a network error, unless it is the caller who gave up.
func unreachable(ctx context.Context, link string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("fetching %s: %w", link, context.Cause(ctx))
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // without the URL, which is told already
	}
	return withHint(fmt.Errorf("fetching %s: %w: %w", link, ErrUnreachable, err),
		"check this host's network and proxy, or name another mirror with --mirror or "+MirrorEnv)
}

// stallReader pushes its timer back with every read that brings data, and keeps
// the error of the network apart from that of the writer.
type stallReader struct {
	r     io.Reader
	timer *time.Timer
	err   error
}

func (s *stallReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if n > 0 {
		s.timer.Reset(stallTimeout)
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
