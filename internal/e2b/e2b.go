package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/control"
	"github.com/forkd-dev/forkd/internal/e2b/envd"
	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/e2b/interpreter"
	"github.com/forkd-dev/forkd/internal/e2b/template"
	"github.com/forkd-dev/forkd/internal/gate"
	"github.com/forkd-dev/forkd/internal/ports"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Manager is the domain as this package and those below it use it;
// *sandbox.Manager is one.
type Manager interface {
	control.Manager
	template.Manager
	envd.Host
	interpreter.Host
	ports.Dialer
}

// Config is what a Router needs.
type Config struct {
	Manager Manager
	REST    http.Handler // forkd's own API, which checks its callers itself
	Token   string       // of the daemon; empty: none
	Home    string       // templates and uploaded files are kept below it
	// Templates lead from names of templates to tags of snapshots.
	Templates map[string]string
	// Domain is told to clients as the domain of sandboxes; see control.Config.
	Domain string
	Log    *slog.Logger
}

// sandboxes is the part of the domain that the router itself uses.
type sandboxes interface {
	Known(ctx context.Context, id string) (*sandbox.Info, error)
	Sandboxes() []sandbox.Info
	Unpause(ctx context.Context, id string, lifetime time.Duration) (*sandbox.Info, error)
}

// Router is everything that a daemon serves, as an http.Handler. Its methods are
// safe for concurrent use.
type Router struct {
	m           sandboxes
	gate        *gate.Gate
	rest        http.Handler
	control     controlAPI
	envd        http.Handler
	interpreter http.Handler
	ports       *ports.Proxy
	log         *slog.Logger
	close       []func()
}

// controlAPI is what *control.API does for the router.
type controlAPI interface {
	http.Handler
	// Signed reports whether a request may do without a key.
	Signed(r *http.Request) bool
}

// New returns a Router. Close ends it.
func New(cfg Config) (*Router, error) {
	dir := filepath.Join(cfg.Home, "e2b")
	store, err := template.Open(dir, cfg.Templates)
	if err != nil {
		return nil, err
	}
	builder, err := template.NewBuilder(cfg.Manager, store, filepath.Join(dir, "files"), cfg.Log)
	if err != nil {
		return nil, err
	}
	services := envd.New(cfg.Manager)
	rt := newRouter(cfg, cfg.Manager, cfg.Manager)
	rt.control = control.New(control.Config{
		Manager: cfg.Manager, Templates: store, Builder: builder, Domain: cfg.Domain, EnvdVersion: envd.Version, Log: cfg.Log,
	})
	rt.envd, rt.interpreter = services, interpreter.New(cfg.Manager)
	rt.close = append(rt.close, builder.Close, services.Close)
	return rt, nil
}

// newRouter returns a Router that lacks what it routes to.
func newRouter(cfg Config, m sandboxes, d ports.Dialer) *Router {
	rt := &Router{m: m, gate: gate.New(cfg.Token), rest: cfg.REST, log: cfg.Log}
	rt.ports = ports.New(d, ports.Options{Fail: failPort, Strip: rt.strip, Log: cfg.Log})
	rt.close = []func(){rt.ports.Close}
	return rt
}

// Close cancels template builds and waits for what they leave.
func (rt *Router) Close() {
	for _, f := range rt.close {
		f()
	}
}

// strip removes from a request to a guest what the guest must not learn, or what
// is of no use to it.
func (rt *Router) strip(h http.Header) {
	rt.gate.Strip(h)
	for _, name := range []string{idHeader, portHeader, trafficHeader} {
		h.Del(name)
	}
}

// ServeHTTP finds out what a request is for.
func (rt *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if e := recover(); e != nil {
			if e != http.ErrAbortHandler {
				rt.log.Error("panic serving a request", "path", r.URL.Path, "panic", fmt.Sprint(e), "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler) // ends the connection, without a second report
		}
	}()
	a, err := addressOf(r)
	switch {
	case r.Method == http.MethodConnect:
		control.Fail(w, r, &control.Error{Code: http.StatusMethodNotAllowed, Message: "this is no proxy"})
	case err == nil:
		rt.data(w, r, a)
	case !errors.Is(err, errNoAddress):
		control.Fail(w, r, &control.Error{Code: http.StatusBadRequest, Message: err.Error()})
	case isPreflight(r):
		rt.preflight(w, r)
	case isREST(r.URL.Path):
		rt.rest.ServeHTTP(w, r)
	case r.URL.Path == "/files": // without a signature too, to say what is missing
		rt.signed(w, r)
	default:
		rt.manage(w, r)
	}
}

// manage passes a request on to the control API if it may be served.
func (rt *Router) manage(w http.ResponseWriter, r *http.Request) {
	open := rt.gate.HasToken() && isOpen(r.URL.Path) || rt.control.Signed(r)
	if err := rt.gate.Check(r); err != nil && !open {
		control.Fail(w, r, err)
		return
	}
	if rt.gate.HasToken() {
		allowOrigin(w.Header(), r)
	}
	rt.control.ServeHTTP(w, r)
}

// isOpen reports whether a path of the control API needs no token: it tells nothing,
// or what clients send there is not the daemon's.
func isOpen(path string) bool {
	return path == "/health" || strings.HasPrefix(path, "/volumecontent/")
}

// refusal is the body of an answer of the data plane that is an error.
type refusal struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

func (no refusal) write(w http.ResponseWriter) {
	b, err := json.Marshal(no)
	if err != nil {
		panic("BUG: a refusal does not marshal: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(no.Code)
	w.Write(b)
}

// target makes what a request is for known to whoever serves it.
func target(r *http.Request, t *front.Target) *http.Request {
	return r.WithContext(front.WithTarget(r.Context(), t))
}
