package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/forkd-dev/forkd/api"
)

// access decides who may ask.
type access struct {
	token   *[sha256.Size]byte // nil: no token is set
	origins *http.CrossOriginProtection
}

// check returns an error when the request may not be served. open marks a
// route that needs no token.
//
// The Unix socket is guarded by its file mode, so it needs no token; but a
// token that is presented there must be right all the same, so that a client
// with the wrong one learns of it. Without a token, TCP is served on loopback
// only, where the remaining danger is a web page that makes the user's browser
// ask: by a cross-origin request, or by a name that its owner re-points to
// 127.0.0.1 (DNS rebinding).
func (a *access) check(r *http.Request, open bool) error {
	bearer := r.Header.Values("Authorization")
	local := isLocal(r)
	switch {
	case a.token == nil && local:
		return nil
	case a.token == nil:
		return a.checkBrowser(r)
	case open, local && len(bearer) == 0, len(bearer) == 1 && a.matches(bearer[0]):
		return nil
	}
	return refuse(api.ErrorCodeUnauthorized, "", "missing or wrong token")
}

// matches compares digests: they have one length, so that the time taken tells
// nothing about the token.
func (a *access) matches(header string) bool {
	scheme, token, _ := strings.Cut(header, " ")
	sum := sha256.Sum256([]byte(token))
	same := subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
	return same && strings.EqualFold(scheme, "Bearer")
}

func (a *access) checkBrowser(r *http.Request) error {
	if !IsLoopback(r.Host) {
		return refuse(api.ErrorCodeForbidden, "use 127.0.0.1 or localhost, or set a token with FORKD_TOKEN",
			"the request names the host %s, which is not a loopback name", quote(r.Host))
	}
	if err := a.origins.Check(r); err != nil {
		return refuse(api.ErrorCodeForbidden, "set a token with FORKD_TOKEN and send it",
			"the request comes from a web page of another origin")
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

// isLocal reports whether the request came over a Unix socket.
func isLocal(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}
