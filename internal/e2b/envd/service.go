package envd

import (
	"context"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Host is what a Service needs of the domain; sandbox.Manager documents it.
type Host interface {
	StartProcess(ctx context.Context, id string, spec sandbox.ProcessSpec) (sandbox.Attachment, error)
	AttachProcess(ctx context.Context, id string, ref sandbox.ProcessRef) (sandbox.Attachment, error)
	Processes(ctx context.Context, id string) ([]sandbox.Process, error)
	WriteProcess(ctx context.Context, id string, ref sandbox.ProcessRef, data []byte) error
	CloseProcessInput(ctx context.Context, id string, ref sandbox.ProcessRef) error
	SignalProcess(ctx context.Context, id string, ref sandbox.ProcessRef, signal int) error
	ResizeProcess(ctx context.Context, id string, ref sandbox.ProcessRef, tty sandbox.TTY) error

	ReadFile(ctx context.Context, id, path string, offset, length int64, w io.Writer) error
	WriteFile(ctx context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error
	StatFile(ctx context.Context, id, path string) (*sandbox.FileInfo, error)
	ListTree(ctx context.Context, id, path string, depth int) ([]sandbox.FileInfo, error)
	MakeDir(ctx context.Context, id, path string, opts sandbox.MakeDirOptions) (*sandbox.FileInfo, bool, error)
	RenameFile(ctx context.Context, id, from, to string) error
	RemoveFile(ctx context.Context, id, path string, recursive bool) error
	ComposeFile(ctx context.Context, id, target string, sources []string, opts sandbox.WriteOptions) (*sandbox.FileInfo, error)
	Watch(ctx context.Context, id string, spec sandbox.WatchSpec) (sandbox.Watch, error)

	User(ctx context.Context, id, name string) (*sandbox.User, error)
	Metrics(ctx context.Context, id string) (*sandbox.Metrics, error)
	// Environment returns what every process in the sandbox has, not to be changed.
	Environment(id string) (map[string]string, error)
}

// Limits of one message of a client.
const (
	maxInput   = 32 << 20 // what is written to a process at once, as JSON
	maxRequest = 1 << 20  // any other
)

// Service serves the API for all sandboxes of a host.
type Service struct {
	host     Host
	mux      *http.ServeMux
	watchers *watchers
}

// New returns a Service. Close ends it.
func New(host Host) *Service {
	s := &Service{host: host, mux: http.NewServeMux(), watchers: newWatchers(host)}
	json := connect.WithCodec(jsonCodec{})
	s.mux.Handle(processpb.NewProcessHandler(&processes{host}, json, connect.WithReadMaxBytes(maxInput)))
	s.mux.Handle(filesystempb.NewFilesystemHandler(&filesystem{host, s.watchers}, json, connect.WithReadMaxBytes(maxRequest)))
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("GET /metrics", s.metrics)
	s.mux.HandleFunc("GET /envs", s.envs)
	s.mux.HandleFunc("GET "+filesPath, s.download)
	s.mux.HandleFunc("POST "+filesPath, s.upload)
	s.mux.HandleFunc("POST "+filesPath+"/compose", s.compose)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "no such endpoint: "+r.Method+" "+r.URL.Path)
	})
	return s
}

// Close ends all watchers. Streams end with their requests.
func (s *Service) Close() { s.watchers.close() }

const (
	filesPath   = "/files"
	tokenHeader = "X-Access-Token"
)

// isOpen reports whether a request may do without a token: because it tells
// nothing, or because it may have a signature, which its handler checks.
func isOpen(r *http.Request) bool {
	switch r.URL.Path {
	case "/health":
		return r.Method == http.MethodGet
	case filesPath:
		return r.Method == http.MethodGet || r.Method == http.MethodPost
	}
	return false
}

// ServeHTTP answers a request whose context has a front.Target.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := newCall(s.host, r)
	if !isOpen(r) && !c.target.Admits(r.Header.Get(tokenHeader)) {
		writeError(w, http.StatusUnauthorized,
			"unauthorized access, please provide a valid access token or method signing if supported")
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
}
