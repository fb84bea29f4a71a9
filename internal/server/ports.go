package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/gate"
	"github.com/forkd-dev/forkd/internal/ports"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// portRoute leads to servers in sandboxes. It takes every method, query and path as
// it is, which a mux, that cleans paths, cannot.
const portRoute = "/v1/sandboxes/{id}/ports/{port}/{path...}"

// route returns the pattern of the route that a request takes and what serves it.
func (s *Server) route(r *http.Request) (pattern string, handler http.Handler) {
	parts := strings.SplitN(r.URL.EscapedPath(), "/", 7)
	if len(parts) < 6 || parts[1] != "v1" || parts[2] != "sandboxes" || parts[4] != "ports" {
		_, pattern := s.mux.Handler(r)
		return pattern, s.mux
	}
	return portRoute, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.proxyPort(w, r, parts[3], parts[5], strings.Join(parts[6:], ""))
	})
}

// newPorts returns the proxy behind portRoute. What a client shows to the daemon is
// not for a guest.
func (s *Server) newPorts() *ports.Proxy {
	opts := ports.Options{
		Fail: func(w http.ResponseWriter, r *http.Request, t ports.Target, err error) {
			fault := new(sandbox.Error)
			switch {
			case errors.Is(err, ports.ErrTarget):
				err = invalid("", "malformed sandbox id or port")
			case !errors.As(err, &fault): // it was connected to
				err = refuse(api.ErrorCodePortClosed, "", "the server on port %d of sandbox %s broke the connection, or does not speak HTTP: %v", t.Port, t.ID, err)
			}
			s.fail(w, r, err)
		},
		Log: s.log,
	}
	if s.gate.HasToken() {
		opts.Strip = func(h http.Header) {
			h.Del("Authorization")
			h.Del(gate.KeyHeader)
		}
	}
	return ports.New(s.m, opts)
}

// proxyPort passes a request on to a server in a sandbox. path is escaped and begins
// after its first slash.
func (s *Server) proxyPort(w http.ResponseWriter, r *http.Request, id, number, path string) {
	port, err := strconv.Atoi(number)
	if err != nil {
		s.fail(w, r, invalid("", "port: must be 1 to 65535, not %s", quote(number)))
		return
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		s.fail(w, r, invalid("", "malformed path: %v", err))
		return
	}
	out := r.Clone(r.Context())
	out.URL.Path, out.URL.RawPath = "/"+plain, "/"+path
	// To a browser this path has the origin of the API.
	s.ports.Serve(w, out, ports.Target{ID: id, Port: port, Contained: true})
}

// OpenPort makes a bare connection to a port of a sandbox out of the client's.
func (s *Server) OpenPort(w http.ResponseWriter, r *http.Request, id api.ID, port api.PortNumber) {
	note(w, slog.Int("port", port))
	protocol := strings.ToLower(r.Header.Get("Upgrade"))
	if protocol != "tcp" && protocol != "tcp-chunked" {
		s.fail(w, r, invalid("send the headers Connection: Upgrade and Upgrade: tcp or tcp-chunked", "this is no request for a connection"))
		return
	}
	guest, err := s.m.DialPort(r.Context(), id, port)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer guest.Close()
	host, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.fail(w, r, refuse(api.ErrorCodeUnsupported, "use HTTP/1.1", "taking over this connection: %v", err))
		return
	}
	defer host.Close()
	host.SetDeadline(time.Time{})
	if _, err := io.WriteString(host, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n"); err != nil {
		return
	}
	if protocol == "tcp-chunked" {
		host = newChunked(host)
	}
	stop := context.AfterFunc(r.Context(), func() {
		host.Close()
		guest.Close()
	})
	defer stop()
	// What was read already is in the buffer. The rest must not be read through it,
	// as the server takes the end of what the client sends for the end of the request.
	early := io.LimitReader(buffered.Reader, int64(buffered.Reader.Buffered()))
	join(host, io.MultiReader(early, host), guest)
}

// chunked is a connection in whose chunks (RFC 9112, 7.1) everything is written, the last of which tells an end from a
// break. Unix sockets have no other way to do that.
type chunked struct {
	net.Conn
	chunks io.Writer
	out    *bufio.Writer // gathers a chunk
}

func newChunked(conn net.Conn) *chunked {
	out := bufio.NewWriterSize(conn, 33<<10) // what io.Copy writes at once, and a little more
	return &chunked{conn, httputil.NewChunkedWriter(out), out}
}

func (c *chunked) Write(b []byte) (int, error) {
	n, err := c.chunks.Write(b)
	return n, errors.Join(err, c.out.Flush())
}

func (c *chunked) CloseWrite() error {
	_, err := io.WriteString(c.out, "0\r\n\r\n")
	if err = errors.Join(err, c.out.Flush()); err != nil {
		return err
	}
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// join carries bytes between two connections until both directions have ended.
// incoming is what comes from the host's.
func join(host net.Conn, incoming io.Reader, guest net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		carry(guest, incoming, host)
	}()
	carry(host, guest, guest)
	<-done
}

// carry copies one direction and passes its end on. If it breaks, both do.
func carry(to net.Conn, from io.Reader, source net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	} else if err == nil {
		err = net.ErrClosed
	}
	if err != nil {
		to.Close()
		source.Close()
	}
}
