package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Host is what a Service needs of the domain; sandbox.Manager documents it.
type Host interface {
	RunCode(ctx context.Context, id string, spec sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error)
	CreateContext(ctx context.Context, id string, spec sandbox.ContextSpec) (*sandbox.CodeContext, error)
	Contexts(ctx context.Context, id string) ([]sandbox.CodeContext, error)
	RemoveContext(ctx context.Context, id, context string) error
	RestartContext(ctx context.Context, id, context string) error
}

// maxRequest is how many bytes a request may have.
const maxRequest = 16 << 20

const tokenHeader = "X-Access-Token"

// Service serves the API for all sandboxes of a host.
type Service struct {
	host Host
	mux  *http.ServeMux
}

// New returns a Service.
func New(host Host) *Service {
	s := &Service{host: host, mux: http.NewServeMux()}
	s.mux.HandleFunc("POST /execute", s.execute)
	s.mux.HandleFunc("POST /contexts", s.createContext)
	s.mux.HandleFunc("GET /contexts", s.listContexts)
	s.mux.HandleFunc("DELETE /contexts/{id}", s.removeContext)
	s.mux.HandleFunc("POST /contexts/{id}/restart", s.restartContext)
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, "OK") })
	return s
}

// ServeHTTP answers a request whose context has a front.Target.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := r.Header.Get(tokenHeader)
	if (given != "" || r.URL.Path == "/execute") && !front.TargetOf(r.Context()).Admits(given) {
		writeText(w, http.StatusUnauthorized, "unauthorized access, please provide a valid access token")
		return
	}
	s.mux.ServeHTTP(w, r)
}

// sandboxID is the id of the sandbox that a request is for.
func sandboxID(r *http.Request) string { return front.TargetOf(r.Context()).ID }

// codeContext is a context as JSON.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func newCodeContext(c sandbox.CodeContext) codeContext { return codeContext(c) }

func (s *Service) createContext(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Language *string `json:"language"`
		Cwd      *string `json:"cwd"`
	}
	if !read(w, r, &req) {
		return
	}
	target := front.TargetOf(r.Context())
	c, err := s.host.CreateContext(r.Context(), target.ID, sandbox.ContextSpec{
		Language: languageOf(req.Language), Cwd: value(req.Cwd), User: target.User(),
	})
	if err != nil {
		fail(w, err)
		return
	}
	writeJSON(w, newCodeContext(*c))
}

func (s *Service) listContexts(w http.ResponseWriter, r *http.Request) {
	all, err := s.host.Contexts(r.Context(), sandboxID(r))
	if err != nil {
		fail(w, err)
		return
	}
	list := make([]codeContext, len(all))
	for i, c := range all {
		list[i] = newCodeContext(c)
	}
	writeJSON(w, list)
}

func (s *Service) removeContext(w http.ResponseWriter, r *http.Request) {
	s.change(w, r, s.host.RemoveContext)
}

func (s *Service) restartContext(w http.ResponseWriter, r *http.Request) {
	s.change(w, r, s.host.RestartContext)
}

func (s *Service) change(w http.ResponseWriter, r *http.Request, do func(ctx context.Context, id, context string) error) {
	context := r.PathValue("id")
	if err := do(r.Context(), sandboxID(r), context); err != nil {
		failContext(w, context, err)
		return
	}
	writeJSON(w, nil)
}

// languageOf is the language that a client means.
func languageOf(name *string) string {
	switch given := strings.ToLower(strings.TrimSpace(value(name))); given {
	case "":
		return sandbox.Python
	case "js":
		return sandbox.JavaScript
	case "ts":
		return "typescript"
	default:
		return given
	}
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// read reads the request's JSON, and says whether it could.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	err := dec.Decode(into)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err == nil {
		return true
	}
	status := http.StatusUnprocessableEntity
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		status = http.StatusRequestEntityTooLarge
	}
	writeText(w, status, "invalid request body: "+err.Error())
	return false
}

// statuses are those of errors that are not the server's. What is asked for and
// cannot be had here is 404, because that is the status whose text SDKs show.
var statuses = map[sandbox.Code]int{
	sandbox.NotFound:           http.StatusNotFound,
	sandbox.Unsupported:        http.StatusNotFound,
	sandbox.NoRuntime:          http.StatusNotFound,
	sandbox.InvalidArgument:    http.StatusNotFound,
	sandbox.FailedPrecondition: http.StatusBadRequest,
	sandbox.InUse:              http.StatusConflict,
	sandbox.CapacityExceeded:   http.StatusTooManyRequests,
	sandbox.SandboxDead:        http.StatusBadGateway,
	sandbox.SandboxPaused:      http.StatusBadGateway,
	sandbox.Unavailable:        http.StatusServiceUnavailable,
	sandbox.NoSpace:            http.StatusInsufficientStorage,
}

func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		if known, ok := statuses[e.Code]; ok {
			status = known
		}
	}
	writeText(w, status, message(err))
}

// failContext fails a request that names a context.
func failContext(w http.ResponseWriter, context string, err error) {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.NotFound {
		writeText(w, http.StatusNotFound, fmt.Sprintf("Context %s not found", context))
		return
	}
	fail(w, err)
}

// message is an error's text, with the hint that there may be.
func message(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	io.WriteString(w, text) // who is gone cannot be told
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer does not marshal: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}
