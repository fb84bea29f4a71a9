package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// Options configure a Client.
type Options struct {
	// HubURL is where registry.json lies: its own URL, or that of its directory.
	// Empty: there is no hub.
	HubURL string
	// HubToken is sent to the origin of HubURL as a bearer token.
	HubToken string
	// Temp is a directory for what has to be written to disk before it is sent.
	Temp string
	// UserAgent names this program to servers.
	UserAgent string
}

// Client ships snapshots.
type Client struct {
	opts      Options
	hub       *url.URL // of registry.json; nil: none
	transport *http.Transport
	http      *http.Client
	patience  patience
}

// patience is how long a transfer that makes no progress goes on.
type patience struct {
	tries int           // in a row without progress
	pause time.Duration // after the first failure; it doubles, up to most
	most  time.Duration
	idle  time.Duration // without a byte, after which a connection is given up
}

// New returns a client. It connects to nothing.
func New(opts Options) (*Client, error) {
	c := &Client{opts: opts, patience: patience{6, 250 * time.Millisecond, 8 * time.Second, time.Minute}}
	c.transport = http.DefaultTransport.(*http.Transport).Clone()
	c.transport.DisableCompression = true // lengths and ranges are of what is stored
	c.transport.ResponseHeaderTimeout = time.Minute
	c.http = &http.Client{Transport: c.transport, CheckRedirect: checkRedirect}
	if opts.HubURL == "" {
		return c, nil
	}
	u, err := url.Parse(opts.HubURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%w: the hub's URL must begin with http:// or https://", ErrReference)
	}
	if !strings.HasSuffix(u.Path, ".json") {
		u = u.JoinPath(indexName)
	}
	c.hub = u
	return c, nil
}

// Close gives up idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Pull takes in the snapshot that ref names.
func (c *Client) Pull(ctx context.Context, ref Reference, to archive.Sink, progress Progress) error {
	switch {
	case ref.URL != nil:
		return c.pullURL(ctx, ref.URL, listing{}, c.grant(ref.URL), to, progress)
	case ref.Name != nil:
		return c.pullName(ctx, *ref.Name, to, progress)
	case ref.OCI != nil:
		return c.pullOCI(ctx, ref.OCI, to, progress)
	}
	return fmt.Errorf("%w: a file is unpacked, not pulled", ErrReference)
}

// Push sends a snapshot to where ref says.
func (c *Client) Push(ctx context.Context, ref Reference, m *snapshot.Manifest, from archive.Source, progress Progress) error {
	switch {
	case ref.URL != nil:
		_, err := c.pushURL(ctx, ref.URL, c.grant(ref.URL), m, from, progress)
		return err
	case ref.Name != nil:
		return c.pushName(ctx, *ref.Name, m, from, progress)
	case ref.OCI != nil:
		return c.pushOCI(ctx, ref.OCI, m, from, progress)
	}
	return fmt.Errorf("%w: a snapshot is packed into a file, not pushed", ErrReference)
}

// grant is a token and the only origin that it goes to.
type grant struct {
	origin *url.URL
	token  string
}

// grant returns what is sent along with requests for something at u: the hub's
// token, if u is at the hub.
func (c *Client) grant(u *url.URL) grant {
	if c.hub != nil && sameOrigin(u, c.hub) {
		return grant{u, c.opts.HubToken}
	}
	return grant{origin: u}
}

// redirectError is a redirect that is not followed, now or later.
type redirectError string

func (e redirectError) Error() string { return string(e) }

// checkRedirect lets nobody lead a request, or a token in it, somewhere else in
// the open.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= 10:
		return redirectError("too many redirects")
	case req.URL.Scheme != "https" && (first.Scheme == "https" || req.URL.Scheme != "http"):
		return redirectError("redirected from " + first.Scheme + " to " + req.URL.Scheme)
	case !sameOrigin(first, req.URL):
		req.Header.Del("Authorization")
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// request prepares a request that bears the token if it is meant for u.
func (c *Client) request(ctx context.Context, method string, u *url.URL, g grant, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not a URL that can be asked", ErrReference, show(u))
	}
	req.Header.Set("User-Agent", c.opts.UserAgent)
	if g.token != "" && sameOrigin(u, g.origin) {
		req.Header.Set("Authorization", "Bearer "+g.token)
	}
	return req, nil
}

// show names a URL without what may be secret in it.
func show(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// failure describes why a request got no answer, without the URL that the
// library puts in front, which may hold secrets.
func failure(u *url.URL, err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("%s: %w: %w", show(u), ErrUnavailable, err)
}

// refusal describes an answer that is not what was asked for.
func refusal(u *url.URL, status int) error {
	kind := ErrUnavailable
	switch status {
	case http.StatusNotFound, http.StatusGone:
		kind = ErrNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		kind = ErrDenied
	case http.StatusPreconditionFailed, http.StatusConflict:
		kind = ErrExists
	}
	return refused(u, kind, status)
}

func refused(u *url.URL, kind error, status int) error {
	return fmt.Errorf("%s: %w (%d %s)", show(u), kind, status, http.StatusText(status))
}

// passing reports whether asking again may help.
func passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// lasting reports whether asking again cannot help, as nobody is there at all or
// they lead astray. A server that was there before may be on its way back.
func lasting(err error, begun bool) bool {
	var dns *net.DNSError
	if errors.As(err, new(redirectError)) {
		return true
	}
	return errors.As(err, &dns) && dns.IsNotFound || !begun && errors.Is(err, syscall.ECONNREFUSED)
}

// rest waits before the n-th new try, n from 1.
func (p patience) rest(ctx context.Context, n int) error {
	pause := min(p.pause<<(n-1), p.most)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pause):
		return nil
	}
}
