// Package gate decides who may use the daemon: it compares tokens, and without a
// token keeps web pages away from a daemon that listens on loopback.
//
// A Gate is immutable and safe for concurrent use. A token is compared by digest,
// so the time it takes tells nothing about it.
package gate

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// KeyHeader is where clients of the E2B API send the token. Others send it as a
// bearer token.
const KeyHeader = "X-Api-Key"

// Refusal is why a request may not be served.
type Refusal struct {
	Status        int // 401 or 403
	Message, Hint string
}

func (r *Refusal) Error() string { return r.Message }

// Gate guards a daemon.
type Gate struct {
	token   *[sha256.Size]byte // nil: none is set
	origins *http.CrossOriginProtection
}

// New returns the gate of a daemon with this token; empty: without one.
func New(token string) *Gate {
	g := &Gate{origins: http.NewCrossOriginProtection()}
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		g.token = &sum
	}
	return g
}

// HasToken reports whether a token is set.
func (g *Gate) HasToken() bool { return g.token != nil }

// Check returns a *Refusal if the request may not be served.
//
// The Unix socket is guarded by its file mode, so it needs no token; but a
// token that is presented there must be right all the same, so that a client
// with the wrong one learns of it. Without a token, TCP is served on loopback
// only, where the remaining danger is a web page that makes the user's browser
// ask: by a cross-origin request, or by a name that its owner re-points to
// 127.0.0.1 (DNS rebinding).
func (g *Gate) Check(r *http.Request) error {
	bearers, keys := r.Header.Values("Authorization"), r.Header.Values(KeyHeader)
	local := IsLocal(r)
	switch {
	case g.token == nil && local:
		return nil
	case g.token == nil:
		return g.CheckBrowser(r)
	case local && len(bearers)+len(keys) == 0:
		return nil
	case len(bearers) == 1 && g.isBearer(bearers[0]), len(keys) == 1 && g.is(keys[0]):
		return nil
	}
	return &Refusal{Status: http.StatusUnauthorized, Message: "missing or wrong token"}
}

func (g *Gate) is(token string) bool {
	if g.token == nil {
		return false
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
}

func (g *Gate) isBearer(header string) bool {
	scheme, token, _ := strings.Cut(header, " ")
	same := g.is(token)
	return same && strings.EqualFold(scheme, "Bearer")
}

// Strip removes the daemon's token from the headers of a request that is to be
// passed on to a guest. What is addressed to the guest stays.
func (g *Gate) Strip(h http.Header) {
	for _, v := range h.Values("Authorization") {
		if g.isBearer(v) {
			h.Del("Authorization")
		}
	}
	for _, v := range h.Values(KeyHeader) {
		if g.is(v) {
			h.Del(KeyHeader)
		}
	}
}

// CheckBrowser refuses what a web page of another origin may have sent, or one
// whose name was re-pointed to this machine.
func (g *Gate) CheckBrowser(r *http.Request) error {
	if !IsLoopback(r.Host) {
		return &Refusal{
			Status:  http.StatusForbidden,
			Message: "the request names the host " + quote(r.Host) + ", which is not a loopback name",
			Hint:    "use 127.0.0.1 or localhost, or set a token with FORKD_TOKEN",
		}
	}
	return g.CheckOrigin(r)
}

// CheckOrigin refuses a request that changes something and comes from a web page
// of another origin.
func (g *Gate) CheckOrigin(r *http.Request) error {
	if err := g.origins.Check(r); err != nil {
		return &Refusal{
			Status:  http.StatusForbidden,
			Message: "the request comes from a web page of another origin",
			Hint:    "set a token with FORKD_TOKEN and send it",
		}
	}
	return nil
}

// IsLoopback reports whether host, with or without a port, certainly is this
// machine: a loopback address or "localhost". Other names are not looked up,
// since who owns them decides what they resolve to.
func IsLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// IsLocal reports whether the request came over a Unix socket.
func IsLocal(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}

func quote(s string) string {
	const limit = 100
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strconv.Quote(s)
}
