package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/client/internal/rest"
)

// Config says where a daemon is and who asks.
type Config struct {
	// URL is http://host:port, https://host:port or unix:///path/of/socket.
	// Empty: DefaultURL.
	URL string
	// Token is sent as a bearer token unless it is empty.
	Token string
	// Transport replaces the client's own for http and https URLs.
	Transport http.RoundTripper
}

// Client speaks to one daemon.
type Client struct {
	url  string
	rest *rest.Client
	http *http.Client
}

// New returns a client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	if cfg.URL == "" {
		cfg.URL = DefaultURL
	}
	base, transport, err := endpoint(cfg)
	if err != nil {
		return nil, err
	}
	c := &Client{url: cfg.URL, http: &http.Client{
		Transport: transport,
		// The API has no redirects; following one would send the token along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	c.rest, err = rest.NewClient(base, rest.WithHTTPClient(c.http), rest.WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			if cfg.Token != "" {
				r.Header.Set("Authorization", "Bearer "+cfg.Token)
			}
			return nil
		}))
	return c, err
}

// endpoint turns a configuration into a base URL and the way to it.
func endpoint(cfg Config) (base string, transport http.RoundTripper, err error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return "", nil, fmt.Errorf("malformed URL of the daemon: %w", err)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		path := u.Path
		return "http://localhost", newTransport(func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}), nil
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.Trim(u.Path, "/") == "":
		if cfg.Transport != nil {
			return cfg.URL, cfg.Transport, nil
		}
		return cfg.URL, newTransport(nil), nil
	}
	return "", nil, fmt.Errorf("malformed URL of the daemon %q: it must be http://host:port or unix:///path", cfg.URL)
}

// newTransport keeps as many connections as a fan-out over sandboxes uses, and
// goes past proxies: the daemon is near.
func newTransport(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
}

// URL tells where the client looks for the daemon.
func (c *Client) URL() string { return c.url }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// check turns the outcome of a request into an error unless it has one of the
// wanted statuses. The body of a good answer is left to the caller.
func (c *Client) check(resp *http.Response, err error, want ...int) (*http.Response, error) {
	if err != nil {
		return nil, c.transportError(err)
	}
	for _, status := range want {
		if resp.StatusCode == status {
			return resp, nil
		}
	}
	defer drain(resp)
	return nil, fromResponse(resp)
}

// transportError tells a daemon that is not there, and one that has gone, from
// other failures.
func (c *Client) transportError(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		cause := op.Err
		return &ConnectError{URL: c.url, Err: cause}
	}
	for _, lost := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, lost) {
			return &LostError{URL: c.url, Err: err}
		}
	}
	return err
}

// decode reads a good answer into v.
func (c *Client) decode(v any, resp *http.Response, err error, want ...int) error {
	resp, err = c.check(resp, err, want...)
	if err != nil {
		return err
	}
	defer drain(resp)
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return fmt.Errorf("reading the daemon's answer: %w", err)
	}
	return nil
}

// done expects an answer without a body.
func (c *Client) done(resp *http.Response, err error) error {
	resp, err = c.check(resp, err, http.StatusNoContent)
	if err == nil {
		drain(resp)
	}
	return err
}

// drain reads what little is left of a body, so that the connection can be used
// again, and closes it.
func drain(resp *http.Response) {
	io.CopyN(io.Discard, resp.Body, 4<<10)
	resp.Body.Close()
}
