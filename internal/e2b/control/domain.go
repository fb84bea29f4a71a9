package control

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/forkd-dev/forkd/internal/gate"
)

// domainOf returns the domain under which whoever sent r reaches ports of
// sandboxes, if that is known: the configured one; that of the API's own name
// "api.<domain>"; or localhost with the daemon's port, as browsers and others
// resolve every name below localhost to the machine itself.
func (a *API) domainOf(r *http.Request) *string {
	domain := a.domain
	switch {
	case domain != "":
	case gate.IsLoopback(r.Host):
		domain = "localhost"
		if _, port, err := net.SplitHostPort(r.Host); err == nil {
			domain += ":" + port
		}
	default:
		below, ok := strings.CutPrefix(r.Host, "api.")
		if !ok {
			return nil
		}
		domain = below
	}
	return &domain
}

// baseURL is the API's address as whoever sent r knows it.
func baseURL(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	host := r.Host
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is6() {
		host = "[" + host + "]"
	}
	return scheme + "://" + host
}
