package e2b

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd-dev/forkd/internal/e2b/control"
	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/ports"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// data serves a request to a port of a sandbox.
func (rt *Router) data(w http.ResponseWriter, r *http.Request, a address) {
	service := a.port == front.EnvdPort || a.port == front.InterpreterPort
	if service && isPreflight(r) {
		allowPreflight(w, r)
		return
	}
	info, err := rt.m.Known(r.Context(), a.id)
	if err != nil {
		failPort(w, r, ports.Target{ID: a.id, Port: a.port}, err)
		return
	}
	rec, err := front.Decode(info.Front)
	if err != nil {
		refusal{SandboxID: a.id, Message: err.Error(), Code: http.StatusBadGateway}.write(w)
		return
	}
	t := &front.Target{ID: a.id, Port: a.port, Record: rec, Trusted: rt.trusts(r, a)}
	if no := rt.check(r, a, info, t); no != nil {
		no.write(w)
		return
	}
	if service && rec.EnvdToken != "" {
		allowOrigin(w.Header(), r)
	}
	if no := rt.awake(r.Context(), info); no != nil {
		no.write(w)
		return
	}
	rt.deliver(w, r, a, t)
}

// trusts reports whether a request may use the daemon, and so every sandbox.
func (rt *Router) trusts(r *http.Request, a address) bool {
	if a.byHost && isLocalName(r.Host) {
		// Every name below localhost is this machine, and nobody can make it another.
		local := r.WithContext(r.Context())
		local.Host = "localhost"
		r = local
	}
	return rt.gate.Check(r) == nil
}

func isLocalName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.HasSuffix(strings.ToLower(host), ".localhost")
}

// check refuses a request that may not use its port. Whether it has the token of
// a service is for that to check.
func (rt *Router) check(r *http.Request, a address, info *sandbox.Info, t *front.Target) *refusal {
	no := func(status int, message string) *refusal {
		return &refusal{SandboxID: a.id, Message: message, Code: status}
	}
	service := a.port == front.EnvdPort || a.port == front.InterpreterPort
	ended := info.State != sandbox.Running && info.State != sandbox.Paused
	switch {
	case len(info.Front) == 0 && !ended && !t.Trusted: // of one that was lost nobody knows what there was
		return no(http.StatusUnauthorized, "the sandbox was not made for clients of E2B; connect to it through the API first")
	case t.Record.Private && a.port != front.EnvdPort && r.Header.Get(trafficHeader) == "":
		return no(http.StatusForbidden, "the sandbox is private: the header "+trafficHeader+" is missing")
	case t.Record.Private && a.port != front.EnvdPort && !front.Same(r.Header.Get(trafficHeader), t.Record.TrafficToken):
		return no(http.StatusForbidden, "the sandbox is private: the traffic token is wrong")
	case service && t.Record.EnvdToken == "" && !t.Trusted && rt.fromPage(r, a):
		return no(http.StatusForbidden, "the sandbox has no token of its own, so web pages may not use it; create it with secure: true")
	}
	return nil
}

// fromPage reports whether a web page of another origin may have sent a request,
// or one under a name that was re-pointed to this machine.
func (rt *Router) fromPage(r *http.Request, a address) bool {
	if rt.gate.HasToken() || a.byHost {
		return rt.gate.CheckOrigin(r) != nil
	}
	return rt.gate.CheckBrowser(r) != nil
}

// awake sees that a sandbox runs, and resumes one that is to be when it is used.
func (rt *Router) awake(ctx context.Context, info *sandbox.Info) *refusal {
	no := func(message string) *refusal {
		return &refusal{SandboxID: info.ID, Message: message, Code: http.StatusBadGateway}
	}
	switch {
	case info.State == sandbox.Running:
		return nil
	case info.State != sandbox.Paused:
		return no("The sandbox has ended: " + info.Reason)
	case !info.AutoResume:
		return no("The sandbox is paused; connect to it to resume it")
	}
	if _, err := rt.m.Unpause(ctx, info.ID, 0); err != nil {
		return no("The sandbox could not be resumed: " + err.Error())
	}
	return nil
}

// deliver passes a request on to what serves its port.
func (rt *Router) deliver(w http.ResponseWriter, r *http.Request, a address, t *front.Target) {
	switch a.port {
	case front.EnvdPort:
		if !a.byHost {
			ports.Contain(w.Header())
		}
		rt.envd.ServeHTTP(w, target(r, t))
	case front.InterpreterPort:
		if !a.byHost {
			ports.Contain(w.Header())
		}
		rt.interpreter.ServeHTTP(w, target(r, t))
	default:
		rt.ports.Serve(w, r, ports.Target{
			ID: a.id, Port: a.port, Host: maskedHost(t.Record.MaskHost, a.port),
			TLS: slices.Contains(t.Record.HTTPSPorts, a.port), Contained: !a.byHost,
		})
	}
}

// maskedHost fills in the port where a mask has room for it.
func maskedHost(mask string, port int) string {
	return strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(port))
}

// failPort answers for a request that did not get to its port.
func failPort(w http.ResponseWriter, r *http.Request, t ports.Target, err error) {
	no := refusal{SandboxID: t.ID, Port: t.Port, Message: err.Error(), Code: http.StatusBadGateway}
	fault, known := errors.AsType[*sandbox.Error](err)
	switch {
	case errors.Is(err, ports.ErrTarget):
		no.Code = http.StatusBadRequest
	case !known:
	case fault.Code == sandbox.NotFound:
		no.Message, no.Port = "The sandbox was not found", 0
	case fault.Code == sandbox.PortClosed:
		no.Message = fmt.Sprintf("The sandbox is running but nothing listens on port %d", t.Port)
	case fault.Code == sandbox.SandboxDead, fault.Code == sandbox.SandboxPaused:
		no.Port = 0
	case fault.Code == sandbox.Timeout:
		no.Code = http.StatusGatewayTimeout
	}
	if r.Context().Err() != nil && no.Message == "" {
		no.Message = "the request was cancelled"
	}
	no.write(w)
}

// signed serves /files with a signature and nothing to route by: it is for the
// sandbox whose token has signed it.
func (rt *Router) signed(w http.ResponseWriter, r *http.Request) {
	a, untold := rt.signer(r)
	for a.id == "" && untold != "" {
		_, err := rt.m.Known(r.Context(), untold)
		if fault, ok := errors.AsType[*sandbox.Error](err); err != nil && !(ok && fault.Code == sandbox.NotFound) {
			control.Fail(w, r, &control.Error{
				Code:    http.StatusGatewayTimeout,
				Message: "no sandbox is known to have signed this, and one that may have has not told yet, as its process does not answer",
			})
			return
		}
		a, untold = rt.signer(r)
	}
	if a.id == "" {
		control.Fail(w, r, &control.Error{
			Code:    http.StatusUnauthorized,
			Message: "no sandbox has signed this: the signature is wrong, or the sandbox has ended",
		})
		return
	}
	rt.data(w, r, a)
}

// signer finds the sandbox that has signed a request, and one that may have, but has not told yet. All are tried,
// so that the time it takes tells nothing about any.
func (rt *Router) signer(r *http.Request) (a address, untold string) {
	q := r.URL.Query()
	given := q.Get("signature")
	operation := map[string]string{http.MethodGet: front.Read, http.MethodHead: front.Read, http.MethodPost: front.Write}[r.Method]
	if operation == "" || !front.IsSignature(given) {
		return address{}, ""
	}
	path, user, expiration := q.Get("path"), q.Get("username"), q.Get("signature_expiration")
	found := ""
	for _, info := range rt.m.Sandboxes() {
		if info.Untold {
			untold = info.ID
			continue
		}
		rec, err := front.Decode(info.Front)
		if err != nil || rec.EnvdToken == "" {
			continue
		}
		if front.Same(given, front.Signature(path, operation, user, rec.EnvdToken, expiration)) {
			found = info.ID
		}
	}
	return address{id: found, port: front.EnvdPort}, untold
}
