package e2b

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// Headers that route a request.
const (
	idHeader      = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	trafficHeader = "E2b-Traffic-Access-Token"
)

// address is a port of a sandbox that a request names.
type address struct {
	id     string
	port   int
	byHost bool // its host does, so that to a browser it has an origin of its own
}

// errNoAddress tells that a request is not for a sandbox.
var errNoAddress = errors.New("the request names no sandbox")

// addressOf finds out which port of which sandbox a request is for.
func addressOf(r *http.Request) (address, error) {
	if a, err := parseHost(r.Host); !errors.Is(err, errNoAddress) {
		return a, err
	}
	ids, ports := r.Header.Values(idHeader), r.Header.Values(portHeader)
	if len(ids)+len(ports) == 0 {
		return address{}, errNoAddress
	}
	if len(ids) != 1 || len(ports) != 1 {
		return address{}, fmt.Errorf("the headers %s and %s must be there once each", idHeader, portHeader)
	}
	return parseAddress(ids[0], ports[0])
}

// parseHost parses a host "<port>-<id>.<anything>", with or without a port of its
// own.
func parseHost(host string) (address, error) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, domain, _ := strings.Cut(strings.ToLower(host), ".")
	port, id, ok := strings.Cut(label, "-")
	if !ok || strings.Trim(domain, ".") == "" || !isDigits(port) || !isName(id) {
		return address{}, errNoAddress
	}
	a, err := parseAddress(id, port)
	a.byHost = true
	return a, err
}

// maxID is the length of a label in a name (RFC 1035).
const maxID = 63

func parseAddress(id, port string) (address, error) {
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || !isDigits(port) {
		return address{}, fmt.Errorf("%q is not a port: it must be 1 to 65535", clip(port))
	}
	if !isName(strings.ReplaceAll(id, "-", "")) || id[0] == '-' {
		return address{}, fmt.Errorf("%q is not the id of a sandbox", clip(id))
	}
	return address{id: id, port: n}, nil
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// isName reports whether s has lower-case letters and digits only.
func isName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= maxID
}

// isREST reports whether a path is one of REST v1's.
func isREST(path string) bool {
	switch path {
	case "/healthz", "/version", "/metrics", "/v1":
		return true
	}
	return strings.HasPrefix(path, "/v1/")
}

func clip(s string) string {
	const limit = 100
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return s
}
