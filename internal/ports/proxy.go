// Package ports carries HTTP to servers in guests: any TCP port that a process in
// a sandbox listens on can be asked through the daemon.
//
// It is a reverse proxy over connections that the domain dials. Bodies are
// streamed both ways and what arrives is passed on at once, so server-sent events
// and chunked answers work; an upgrade (WebSocket) turns the connection into a
// pipe. Connections to guests are kept for a while, a few for each port. They
// belong to a machine: when that ends, is paused or rolled back they break, so a
// kept one never leads to another.
//
// A server in a guest is hostile: its headers are bounded, and a connection that
// breaks midway aborts the answer instead of ending it as if it were whole.
//
// There are no locks.
package ports

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strconv"
	"sync"
	"time"
)

const (
	dialTime   = 30 * time.Second // to a port, resuming the sandbox if need be
	idleTime   = 30 * time.Second // that an unused connection is kept
	maxIdle    = 256              // kept connections of all ports
	maxIdlePer = 8                // kept connections of one port
	maxHeader  = 256 << 10        // bytes of an answer's header
	bufferSize = 32 << 10         // bytes copied at a time
)

// Dialer is the domain as this package uses it; *sandbox.Manager is one.
type Dialer interface {
	DialPort(ctx context.Context, id string, port int) (net.Conn, error)
}

// Target is a server in a guest.
type Target struct {
	ID   string // of the sandbox
	Port int
	Host string // the Host header that it sees; empty: that of the request
	TLS  bool   // it speaks TLS; its certificate is not verified
	// Contained is set if the answer has the same origin as the daemon's API to a
	// browser. A page in it then runs as if it were from nowhere, and cannot ask
	// the API in the name of whoever looks at it.
	Contained bool
}

// containment is the policy of a page that is contained. A browser honours it
// whatever other policies there are.
const containment = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"

// Contain has a browser take what an answer with this header holds for a page of
// no origin.
func Contain(h http.Header) {
	h.Add("Content-Security-Policy", containment)
	h.Set("X-Content-Type-Options", "nosniff")
}

// Options say how to proxy.
type Options struct {
	// Fail answers for a request that did not get to its target.
	Fail func(w http.ResponseWriter, r *http.Request, t Target, err error)
	// Strip removes from a request what is not for a guest, such as tokens of the
	// daemon; may be nil.
	Strip func(http.Header)
	Log   *slog.Logger // of connections that break midway; nil: none
}

// Proxy is safe for concurrent use.
type Proxy struct {
	opts      Options
	transport *http.Transport
	proxy     httputil.ReverseProxy
}

// New returns a Proxy.
func New(d Dialer, opts Options) *Proxy {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{opts: opts}
	p.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return dial(ctx, d, addr)
		},
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // it is whoever listens there
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout:    dialTime,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdlePer,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout:  time.Second,
		DisableCompression:     true, // what is asked for is passed on as it is
	}
	p.proxy = httputil.ReverseProxy{
		Rewrite:       p.rewrite,
		Transport:     p.transport,
		FlushInterval: -1, // at once
		BufferPool:    &buffers{},
		ErrorLog:      slog.NewLogLogger(opts.Log.Handler(), slog.LevelDebug),
		ErrorHandler:  p.fail,
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.Context().Value(targetKey{}).(Target).Contained {
				Contain(resp.Header)
			}
			return nil
		},
	}
	return p
}

// Close drops the kept connections.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// idPattern is what may stand for a sandbox in an address.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

// ErrTarget is the error for a target that cannot exist.
var ErrTarget = errors.New("malformed sandbox id or port")

// Serve passes a request on to its target.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, t Target) {
	if !idPattern.MatchString(t.ID) || t.Port < 1 || t.Port > 65535 {
		p.opts.Fail(w, r, t, ErrTarget)
		return
	}
	p.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
}

type targetKey struct{}

func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	t := pr.In.Context().Value(targetKey{}).(Target)
	in, out := pr.In, pr.Out
	out.URL.Scheme = "http"
	if t.TLS {
		out.URL.Scheme = "https"
	}
	out.URL.Host = net.JoinHostPort(t.ID, strconv.Itoa(t.Port))
	out.URL.RawQuery = in.URL.RawQuery // as it came, not as we would have it
	out.Host = cmp.Or(t.Host, in.Host)
	// Another proxy may stand before the daemon, and it knows better.
	out.Header["X-Forwarded-For"] = in.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := in.Header[name]; v != nil {
			out.Header[name] = v
		}
	}
	if p.opts.Strip != nil {
		p.opts.Strip(out.Header)
	}
}

func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	p.opts.Fail(w, r, r.Context().Value(targetKey{}).(Target), err)
}

// dial connects to the port that an address of ours names.
func dial(ctx context.Context, d Dialer, addr string) (net.Conn, error) {
	id, text, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dialling a guest: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("dialling a guest: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return d.DialPort(ctx, id, port)
}

// buffers lends out what bodies are copied through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if v, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return v[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(v []byte) { b.pool.Put((*[bufferSize]byte)(v)) }
