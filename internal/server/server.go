package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/gate"
	"github.com/forkd-dev/forkd/internal/ports"
)

// Limits that api/openapi.yaml states; those of bodies and lines are in bytes.
const (
	maxFork         = 1000 // children of one request
	maxEvals        = 1000 // sandboxes of one request
	maxID           = 64   // bytes of an id in a list of them
	maxSmallBody    = 64 << 10
	maxSnapshotBody = 1 << 20
	maxEvalBody     = 8 << 20
	maxExecBody     = 32 << 20
	maxStreamLine   = 1 << 20
	maxForkBody     = 256 << 10
	maxProcessBody  = 1 << 20
	maxInputBody    = 1 << 20
	maxProcessTag   = 256
	maxDepth        = 256   // levels of a tree
	maxSources      = 10000 // of a composed file
)

// Config is what a Server needs.
type Config struct {
	Manager Manager
	// Token that requests over TCP must bear. Empty: none, and then only
	// loopback may be served.
	Token   string
	Log     *slog.Logger // requests are logged here; nil: not at all
	Version string
	Engine  string // engine of new sandboxes
	// Executor is what the engine executes guest code with, in words.
	Executor string
}

// Server is the REST API as an http.Handler. Its methods are safe for
// concurrent use.
type Server struct {
	m       Manager
	log     *slog.Logger
	version api.Version
	gate    *gate.Gate
	mux     *http.ServeMux
	metrics *metrics
	retries *idempotency
	ports   *ports.Proxy

	keepAlive time.Duration // between empty lines on a silent stream
}

var _ ServerInterface = (*Server)(nil)

// New returns a Server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		m:   cfg.Manager,
		log: cfg.Log,
		version: api.Version{
			Version:       cfg.Version,
			API:           "v1",
			Engine:        cfg.Engine,
			Executor:      cfg.Executor,
			PID:           os.Getpid(),
			StartedAtUnix: time.Now().Unix(),
		},
		gate:      gate.New(cfg.Token),
		mux:       http.NewServeMux(),
		metrics:   newMetrics(cfg),
		retries:   newIdempotency(time.Now),
		keepAlive: 5 * time.Second,
	}
	s.ports = s.newPorts()
	HandlerWithOptions(s, StdHTTPServerOptions{BaseRouter: s.mux, ErrorHandlerFunc: s.badParameter})
	return s
}

// ServeHTTP checks who asks, finds the route, and logs what was done.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	pattern, handler := s.route(r)
	start := time.Now()
	defer func() {
		s.audit(rec, r, pattern, time.Since(start))
		if e := recover(); e != nil {
			if e != http.ErrAbortHandler {
				s.reportPanic(pattern, e)
			}
			panic(http.ErrAbortHandler) // ends the connection, without a second report
		}
	}()

	if err := s.admit(r, pattern == "GET /healthz"); err != nil {
		s.fail(rec, r, err)
		return
	}
	if pattern == "" {
		s.noRoute(rec, r)
		return
	}
	if err := checkQuery(pattern, r.URL.RawQuery); pattern != portRoute && err != nil {
		s.fail(rec, r, err)
		return
	}
	handler.ServeHTTP(rec, r)
}

// reportPanic logs what was recovered, with the place.
func (s *Server) reportPanic(pattern string, e any) {
	s.log.Error("panic serving a request", "route", pattern, "panic", fmt.Sprint(e), "stack", string(debug.Stack()))
}

// noRoute answers for a path or a method that the API lacks; the mux knows
// which of the two it is and which methods there are.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	probe := &probeWriter{header: make(http.Header)}
	s.mux.ServeHTTP(probe, r)
	if probe.status != http.StatusMethodNotAllowed {
		s.fail(w, r, refuse(api.ErrorCodeNotFound, "", "there is no route %s", quote(r.URL.Path)))
		return
	}
	allow := probe.header.Get("Allow")
	w.Header().Set("Allow", allow)
	s.fail(w, r, refuse(api.ErrorCodeMethodNotAllowed, "use "+allow, "%s is not a method of %s", quote(r.Method), quote(r.URL.Path)))
}

// probeWriter keeps the status and the headers of an answer.
type probeWriter struct {
	header http.Header
	status int
}

func (p *probeWriter) Header() http.Header         { return p.header }
func (p *probeWriter) WriteHeader(status int)      { p.status = status }
func (p *probeWriter) Write(b []byte) (int, error) { return len(b), nil }

// queryNames lists the query parameters of the routes that have any. The
// generated code ignores unknown ones, and an ignored "recursiv=true" would be
// a surprise. A test holds the table against the spec.
var queryNames = map[string][]string{
	"DELETE /v1/snapshots/{tag}":           {"force", "cascade"},
	"GET /v1/sandboxes":                    {"state", "metadata"},
	"POST /v1/snapshots/unpack":            {"tag"},
	"GET /v1/sandboxes/{id}/files":         {"path", "offset", "length"},
	"PUT /v1/sandboxes/{id}/files":         {"path", "mode", "user", "parents", "attr"},
	"DELETE /v1/sandboxes/{id}/files":      {"path", "recursive"},
	"GET /v1/sandboxes/{id}/files/list":    {"path"},
	"GET /v1/sandboxes/{id}/files/tree":    {"path", "depth"},
	"GET /v1/sandboxes/{id}/files/watch":   {"path", "recursive", "entries"},
	"GET /v1/sandboxes/{id}/files/stat":    {"path"},
	"POST /v1/sandboxes/{id}/files/mkdir":  {"path", "parents", "mode", "user"},
	"POST /v1/sandboxes/{id}/files/rename": {"from", "to"},
}

func checkQuery(pattern, query string) error {
	if query == "" {
		return nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return invalid("", "malformed query: %v", err)
	}
	for name := range values {
		if !slices.Contains(queryNames[pattern], name) {
			hint := "this route has no query parameters"
			if names := queryNames[pattern]; names != nil {
				hint = "known are " + strings.Join(names, ", ")
			}
			return invalid(hint, "unknown query parameter %q", name)
		}
	}
	return nil
}

// badParameter answers for a parameter that the generated code refused.
func (s *Server) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	var format *InvalidParamFormatError
	var missing *RequiredParamError
	var many *TooManyValuesForParamError
	switch {
	case errors.As(err, &format):
		err = malformedParameter(format)
	case errors.As(err, &missing):
		err = invalid("", "%s: required", missing.ParamName)
	case errors.As(err, &many):
		err = invalid("", "%s: given %d times", many.ParamName, many.Count)
	default:
		err = invalid("", "%v", err)
	}
	s.fail(w, r, err)
}

// malformedParameter says what a parameter must be, and not how it was parsed.
func malformedParameter(e *InvalidParamFormatError) error {
	var num *strconv.NumError
	if !errors.As(e.Err, &num) {
		return invalid("", "%s: malformed value: %v", e.ParamName, e.Err)
	}
	want := "a whole number in range"
	if num.Func == "ParseBool" {
		want = "true or false"
	}
	return invalid("", "%s: must be %s, not %s", e.ParamName, want, quote(num.Num))
}

// GetHealth tells that the daemon answers, and nothing about it.
func (s *Server) GetHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, api.Health{Status: api.HealthStatusOk})
}

// GetVersion tells which daemon answers.
func (s *Server) GetVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.version)
}
