package e2b

import (
	"net/http"
	"strings"

	"github.com/forkd-dev/forkd/internal/e2b/control"
)

const (
	maxAge        = "7200" // seconds that a browser remembers a preflight
	maxCORSHeader = 4 << 10
	corsMethods   = "GET, HEAD, POST, PUT, PATCH, DELETE"
)

// isPreflight reports whether a browser asks whether a page may ask.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflight answers for a request that does not say by its host what it will be
// for. It names headers but not what is in them, so which sandbox it is about is
// not known: whether a page may use that is seen when it does.
func (rt *Router) preflight(w http.ResponseWriter, r *http.Request) {
	wanted := strings.ToLower(r.Header.Get("Access-Control-Request-Headers"))
	switch {
	case strings.Contains(wanted, strings.ToLower(idHeader)), r.URL.Path == "/files":
		allowPreflight(w, r)
	case isREST(r.URL.Path):
		rt.rest.ServeHTTP(w, r)
	case rt.gate.HasToken():
		allowPreflight(w, r)
	default:
		control.Fail(w, r, &control.Error{
			Code:    http.StatusForbidden,
			Message: "web pages may use the API only if the daemon has a token (set FORKD_TOKEN)",
		})
	}
}

// allowPreflight lets a page send what it wants to.
func allowPreflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	allowOrigin(h, r)
	h.Set("Access-Control-Allow-Methods", corsMethods)
	if wanted := r.Header.Get("Access-Control-Request-Headers"); wanted != "" && len(wanted) <= maxCORSHeader {
		h.Set("Access-Control-Allow-Headers", wanted)
	}
	h.Set("Access-Control-Max-Age", maxAge)
	w.WriteHeader(http.StatusNoContent)
}

// allowOrigin lets a page read an answer. No page is preferred and cookies mean
// nothing here: what a page has to know is a token.
func allowOrigin(h http.Header, r *http.Request) {
	if r.Header.Get("Origin") == "" {
		return
	}
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*")
}
