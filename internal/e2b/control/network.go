package control

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/jsonbody"
)

// noNetwork is what there is to know of the network of sandboxes.
const noNetwork = "sandboxes have no network device: nothing gets out, whatever is allowed; servers in them are reached through their ports"

const (
	maxDestinations = 1000
	maxDestination  = 253 // bytes
	maxMask         = 255 // bytes
	maxHTTPSPorts   = 100
)

// networkConfig is how a sandbox's network is to be, and how it is told.
type networkConfig struct {
	AllowPublic *bool           `json:"allowPublicTraffic,omitempty"`
	AllowOut    []string        `json:"allowOut,omitempty"`
	DenyOut     []string        `json:"denyOut,omitempty"`
	EgressProxy json.RawMessage `json:"egressProxy,omitempty"`
	MaskHost    string          `json:"maskRequestHost,omitempty"`
	Rules       json.RawMessage `json:"rules,omitempty"`
	HTTPSPorts  []int           `json:"httpsPorts,omitempty"`
}

// egress is the part of it that can be replaced later.
type egress struct {
	Internet    *bool           `json:"allow_internet_access"`
	AllowOut    []string        `json:"allowOut"`
	DenyOut     []string        `json:"denyOut"`
	EgressProxy json.RawMessage `json:"egressProxy"`
	Rules       json.RawMessage `json:"rules"`
}

func (n *networkConfig) check() error {
	switch {
	case !isNothing(n.EgressProxy):
		return missing("egressProxy", "sandboxes have no network device")
	case !isNothing(n.Rules):
		return missing("network rules", "sandboxes have no network device, so there are no requests to change")
	case len(n.AllowOut) > maxDestinations || len(n.DenyOut) > maxDestinations:
		return invalid("network: more than %d destinations", maxDestinations)
	case len(n.MaskHost) > maxMask || strings.ContainsAny(n.MaskHost, " \t\r\n/"):
		return invalid("network.maskRequestHost: malformed host %q", clip(n.MaskHost))
	case len(n.HTTPSPorts) > maxHTTPSPorts:
		return invalid("network.httpsPorts: more than %d ports", maxHTTPSPorts)
	}
	for _, d := range n.AllowOut {
		if d == "" || len(d) > maxDestination || strings.ContainsAny(d, " \t\r\n") {
			return invalid("network.allowOut: malformed destination %q", clip(d))
		}
	}
	for _, d := range n.DenyOut {
		if !isAddress(d) {
			return invalid("network.denyOut: %q is neither an address nor a CIDR block", clip(d))
		}
	}
	for _, p := range n.HTTPSPorts {
		if p < 1 || p > 65535 || p == front.EnvdPort {
			return invalid("network.httpsPorts: %d cannot be one", p)
		}
	}
	return nil
}

func isAddress(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// apply enters a checked configuration into a record.
func (n *networkConfig) apply(rec *front.Record) error {
	if n == nil {
		return nil
	}
	if err := n.check(); err != nil {
		return err
	}
	n.EgressProxy, n.Rules = nil, nil // they say nothing
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	rec.Network, rec.MaskHost, rec.HTTPSPorts = b, n.MaskHost, n.HTTPSPorts
	rec.Private = n.AllowPublic != nil && !*n.AllowPublic
	return nil
}

// asksForNetwork reports whether a sandbox was promised what it does not get.
func asksForNetwork(rec *front.Record) bool {
	var n networkConfig
	json.Unmarshal(rec.Network, &n)
	return rec.Internet != nil && *rec.Internet || len(n.AllowOut) > 0
}

// setNetwork replaces what a sandbox may reach.
func (a *API) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var req egress
	if _, err := jsonbody.Read(w, r, maxLargeBody, &req); err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, _, err := a.live(r.Context(), id); err != nil {
		return err
	}
	err := a.update(r, id, func(rec *front.Record) error {
		var n networkConfig
		if len(rec.Network) > 0 {
			if err := json.Unmarshal(rec.Network, &n); err != nil {
				return err
			}
		}
		n.AllowOut, n.DenyOut, n.EgressProxy, n.Rules = req.AllowOut, req.DenyOut, req.EgressProxy, req.Rules
		rec.Internet = req.Internet
		return n.apply(rec)
	})
	if err != nil {
		return err
	}
	a.journal.note(id, levelInfo, "network configuration stored; "+noNetwork)
	return done(w)
}

// network tells how a sandbox's network was to be, and how it is.
func (a *API) network(w http.ResponseWriter, r *http.Request) error {
	_, rec, err := a.live(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		Internet *bool           `json:"allow_internet_access"`
		Network  json.RawMessage `json:"network"`
		Note     string          `json:"note"`
	}{rec.Internet, orEmpty(rec.Network), noNetwork})
	return nil
}

// orEmpty is an object for nothing.
func orEmpty(v json.RawMessage) json.RawMessage {
	if len(v) == 0 {
		return json.RawMessage("{}")
	}
	return v
}
