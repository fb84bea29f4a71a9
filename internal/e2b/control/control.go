// Package control is the control half of the E2B API: sandboxes and their lives,
// snapshots and templates, in both generations of routes. What clients of E2B
// send and expect is the specification.
//
// Invariants:
//   - A route or an option that forkd cannot honour is refused with a text that
//     says so. None is ignored.
//   - The code in an error's body is the status of its answer.
//   - A create that fails leaves no sandbox, nor does one whose client has gone.
//   - Who may ask was checked before.
//
// Lock order: journal.mu is a leaf.
package control

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/template"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Manager is the domain as this package uses it; *sandbox.Manager is one. Its
// errors are *sandbox.Error.
type Manager interface {
	Fork(ctx context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error)
	ForkSandbox(ctx context.Context, id string, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error)
	Sandboxes() []sandbox.Info
	Sandbox(id string) (*sandbox.Info, error)
	Known(ctx context.Context, id string) (*sandbox.Info, error)
	Kill(id string) error

	Pause(ctx context.Context, id string) (*sandbox.Info, error)
	Unpause(ctx context.Context, id string, lifetime time.Duration) (*sandbox.Info, error)
	SetLifetime(ctx context.Context, id string, d time.Duration) (*sandbox.Info, error)
	ExtendLifetime(ctx context.Context, id string, d time.Duration) (*sandbox.Info, error)
	SetFront(ctx context.Context, id string, update func(json.RawMessage) (json.RawMessage, error)) error
	Metrics(ctx context.Context, id string) (*sandbox.Metrics, error)
	Environment(id string) (map[string]string, error)

	Branch(ctx context.Context, id string, spec sandbox.BranchSpec) (*sandbox.SnapshotInfo, error)
	Snapshots() ([]sandbox.SnapshotInfo, error)
	Snapshot(tag string) (*sandbox.SnapshotInfo, error)
	RemoveSnapshots(tags []string, opts sandbox.RemoveOptions) ([]string, error)
}

// Config is what an API needs.
type Config struct {
	Manager   Manager
	Templates *template.Store
	Builder   *template.Builder
	// Domain is told to clients as the domain of sandboxes: port 80 of one is
	// 80-<id>.<domain>. Empty: it is made from the address that they use.
	Domain string
	// EnvdVersion is the version of the service on the port of envd; clients
	// choose by it what they use.
	EnvdVersion string
	Log         *slog.Logger
}

// API is the control API as an http.Handler. Its methods are safe for concurrent
// use.
type API struct {
	m       Manager
	store   *template.Store
	builder *template.Builder
	domain  string
	envd    string // version
	log     *slog.Logger
	mux     *http.ServeMux
	journal *journal
	uploads uploads
}

// New returns an API.
func New(cfg Config) *API {
	a := &API{
		m: cfg.Manager, store: cfg.Templates, builder: cfg.Builder, domain: cfg.Domain, envd: cfg.EnvdVersion, log: cfg.Log,
		mux: http.NewServeMux(), journal: newJournal(), uploads: newUploads(),
	}
	for pattern, serve := range a.routes() {
		a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := serve(w, r); err != nil {
				Fail(w, r, err)
			}
		})
	}
	a.sweep()
	return a
}

// route serves a request, or returns the error to answer with if it has not
// answered yet.
type route func(w http.ResponseWriter, r *http.Request) error

func (a *API) routes() map[string]route {
	all := map[string]route{
		"GET /health": func(w http.ResponseWriter, _ *http.Request) error { return done(w) },

		"POST /sandboxes":             a.create(v1),
		"POST /v2/sandboxes":          a.create(v2),
		"GET /sandboxes":              a.listV1,
		"GET /v2/sandboxes":           a.list,
		"GET /sandboxes/metrics":      a.metricsOfMany,
		"GET /sandboxes/{id}":         a.info,
		"DELETE /sandboxes/{id}":      a.kill,
		"GET /sandboxes/{id}/metrics": a.metrics,
		"GET /sandboxes/{id}/logs":    a.logsV1,
		"GET /v2/sandboxes/{id}/logs": a.logs,

		"POST /sandboxes/{id}/connect":    a.connect(v1),
		"POST /v2/sandboxes/{id}/connect": a.connect(v2),
		"POST /sandboxes/{id}/resume":     a.resume,
		"POST /sandboxes/{id}/pause":      a.pause,
		"POST /sandboxes/{id}/timeout":    a.timeout,
		"POST /sandboxes/{id}/refreshes":  a.refresh,
		"POST /sandboxes/{id}/fork":       a.fork(v1),
		"POST /v2/sandboxes/{id}/fork":    a.fork(v2),
		"GET /sandboxes/{id}/network":     a.network,
		"PUT /sandboxes/{id}/network":     a.setNetwork,

		"POST /sandboxes/{id}/snapshots": a.snapshot,
		"GET /snapshots":                 a.snapshots,

		"GET /templates":                                  a.templates,
		"GET /v2/templates":                               a.templates,
		"POST /v3/templates":                              a.requestBuild,
		"GET /templates/{template}":                       a.template,
		"DELETE /templates/{template}":                    a.removeTemplate,
		"PATCH /templates/{template}":                     a.updateTemplate,
		"PATCH /v2/templates/{template}":                  a.updateTemplate,
		"GET /templates/{template}/{part}":                a.templatePart,
		"POST /templates/tags":                            a.assignTags,
		"DELETE /templates/tags":                          a.removeTags,
		"GET /templates/{template}/files/{hash}":          a.upload,
		"PUT /templates/{template}/files/{hash}":          a.putFile,
		"POST /v2/templates/{template}/builds/{build}":    a.startBuild,
		"GET /templates/{template}/builds/{build}/status": a.buildStatus,
		"GET /templates/{template}/builds/{build}/logs":   a.buildLogs,

		"GET /teams": a.teams,
	}
	for _, m := range lacking {
		for _, pattern := range m.patterns {
			all[pattern] = func(http.ResponseWriter, *http.Request) error { return missing(m.what, m.why) }
		}
	}
	return all
}

// generation is that of a route: they differ in their defaults.
type generation int

const (
	v1 generation = 1
	v2 generation = 2
)

// ServeHTTP finds the route, and logs what was done.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler, pattern := a.mux.Handler(r)
	rec := &recorder{ResponseWriter: w}
	start := time.Now()
	if pattern == "" {
		a.noRoute(rec, r, handler)
	} else {
		a.mux.ServeHTTP(rec, r)
	}
	a.audit(r, pattern, rec.status, time.Since(start))
}

// noRoute answers for a path or a method that the API lacks; handler is the mux's
// own answer, which knows which of the two it is and which methods there are.
func (a *API) noRoute(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	probe := &probe{header: make(http.Header)}
	handler.ServeHTTP(probe, r)
	if probe.status != http.StatusMethodNotAllowed {
		Fail(w, r, refuse(http.StatusNotFound, "there is no route %s", clip(r.URL.Path)))
		return
	}
	allow := probe.header.Get("Allow")
	w.Header().Set("Allow", allow)
	Fail(w, r, refuse(http.StatusMethodNotAllowed, "%s is not a method of %s; use %s", clip(r.Method), clip(r.URL.Path), allow))
}

// probe keeps the status and the headers of an answer.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) WriteHeader(status int)      { p.status = status }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }

// recorder keeps the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// audit writes one line per request: who did what to which thing, and how it
// went. Reading is logged at debug level.
func (a *API) audit(r *http.Request, pattern string, status int, took time.Duration) {
	level := slog.LevelInfo
	if r.Method == http.MethodGet || pattern == "" {
		level = slog.LevelDebug
	}
	if status >= 500 && status != http.StatusNotImplemented {
		level = slog.LevelWarn
	}
	a.log.LogAttrs(context.Background(), level, "request",
		slog.String("api", "e2b"), slog.String("route", pattern), slog.Int("status", status), slog.Duration("took", took),
		slog.String("remote", r.RemoteAddr), slog.String("id", r.PathValue("id")))
}

// done answers that there is nothing to tell.
func done(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// lacking are the documented routes that forkd does not have, and why.
var lacking = []struct {
	what, why string
	patterns  []string
}{
	{"the API of volumes", "sandboxes share no disks; copy files, or fork a sandbox that has them", []string{
		"/volumes", "/volumes/", "/volumecontent/",
	}},
	{"the API of secrets", "they are put into outgoing requests, and sandboxes have no network; pass envs", []string{
		"/secrets", "/secrets/",
	}},
	{"the metrics of teams", "a daemon has one team; GET /metrics tells of the daemon", []string{
		"GET /teams/{team}/metrics", "GET /teams/{team}/metrics/max",
	}},
	{"this way to build templates", "use POST /v3/templates and POST /v2/templates/{templateID}/builds/{buildID}", []string{
		"POST /templates", "POST /v2/templates", "POST /templates/{template}", "POST /templates/{template}/builds/{build}",
	}},
	{"the administration of keys, tokens and nodes", "a daemon has one token, which is set when it starts", []string{
		"/api-keys", "/api-keys/", "/access-tokens", "/access-tokens/", "/nodes", "/nodes/", "/admin/",
	}},
}
