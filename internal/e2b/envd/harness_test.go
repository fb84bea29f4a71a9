package envd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/e2b/envd/rpc/processpb"
	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
	"github.com/forkd-dev/forkd/internal/server/servertest"
)

// fakeHost is a domain of directories and processes of this machine. It knows the
// users root and user, and owners and attributes of what was written through it.
type fakeHost struct {
	*servertest.Fake

	mu      sync.Mutex
	started []sandbox.ProcessSpec
	written map[string]sandbox.WriteOptions
	made    sandbox.MakeDirOptions
	lookups int  // of users
	watches int  // that are open
	cut     bool // reading ends with an error
}

func fault(code sandbox.Code, text string) error { return &sandbox.Error{Code: code, Message: text} }

var accounts = map[string]*sandbox.User{
	"root": {Name: "root", Home: "/root"},
	"user": {Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
}

func (h *fakeHost) User(_ context.Context, _, name string) (*sandbox.User, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lookups++
	if u := accounts[name]; u != nil {
		return u, nil
	}
	return nil, fault(sandbox.NotFound, "no such user")
}

func (h *fakeHost) StartProcess(ctx context.Context, id string, spec sandbox.ProcessSpec) (sandbox.Attachment, error) {
	h.mu.Lock()
	h.started = append(h.started, spec)
	h.mu.Unlock()
	account := accounts[spec.User]
	if account == nil {
		return nil, fault(sandbox.InvalidArgument, "no such user")
	}
	if spec.Cwd == "" {
		spec.Cwd = account.Home
	}
	return h.Fake.StartProcess(ctx, id, spec)
}

func (h *fakeHost) WriteFile(ctx context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error {
	if accounts[opts.User] == nil {
		return fault(sandbox.InvalidArgument, "no such user")
	}
	if strings.HasPrefix(path, "/full/") {
		return fault(sandbox.NoSpace, "the disk is full")
	}
	h.mu.Lock()
	h.written[path] = opts
	h.mu.Unlock()
	return h.Fake.WriteFile(ctx, id, path, r, opts)
}

func (h *fakeHost) MakeDir(ctx context.Context, id, path string, opts sandbox.MakeDirOptions) (*sandbox.FileInfo, bool, error) {
	h.made = opts
	return h.Fake.MakeDir(ctx, id, path, opts)
}

func (h *fakeHost) ReadFile(ctx context.Context, id, path string, offset, length int64, w io.Writer) error {
	if !h.cut {
		return h.Fake.ReadFile(ctx, id, path, offset, length, w)
	}
	if err := h.Fake.ReadFile(ctx, id, path, offset, 50_000, w); err != nil {
		return err
	}
	return fault(sandbox.SandboxDead, "the guest died")
}

func (h *fakeHost) describe(info *sandbox.FileInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	opts := h.written[info.Path]
	info.Owner, info.Group, info.Attrs = opts.User, opts.User, opts.Attrs
}

func (h *fakeHost) StatFile(ctx context.Context, id, path string) (*sandbox.FileInfo, error) {
	info, err := h.Fake.StatFile(ctx, id, path)
	if err == nil {
		h.describe(info)
	}
	return info, err
}

func (h *fakeHost) Watch(ctx context.Context, id string, spec sandbox.WatchSpec) (sandbox.Watch, error) {
	w, err := h.Fake.Watch(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches++
	return &countedWatch{Watch: w, host: h}, nil
}

type countedWatch struct {
	sandbox.Watch
	host *fakeHost
	once sync.Once
}

func (w *countedWatch) Close() error {
	w.once.Do(func() {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		w.host.watches--
	})
	return w.Watch.Close()
}

// site is a Service with a sandbox behind it.
type site struct {
	*httptest.Server
	host    *fakeHost
	service *Service
	id      string
	rec     front.Record
}

const token = "0123456789abcdef"

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{host: &fakeHost{Fake: servertest.New(t.TempDir(), "base"), written: map[string]sandbox.WriteOptions{}}}
	results, err := s.host.Fork(t.Context(), sandbox.ForkSpec{Tag: "base", N: 1, Env: map[string]string{"GREETING": "hello"}})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	s.id = results[0].Sandbox.ID
	for _, dir := range []string{"/home/user", "/root"} {
		if _, _, err := s.host.Fake.MakeDir(t.Context(), s.id, dir, sandbox.MakeDirOptions{Parents: true}); err != nil {
			t.Fatal(err)
		}
	}
	s.service = New(s.host)
	s.Server = httptest.NewServer(s)
	s.Config.Handler = s
	t.Cleanup(func() {
		s.Server.Close()
		s.service.Close()
		if err := s.host.Close(); err != nil {
			t.Error(err)
		}
		if s.host.watches != 0 {
			t.Errorf("%d watches are left open", s.host.watches)
		}
	})
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	target := &front.Target{ID: s.id, Port: front.EnvdPort, Record: s.rec}
	s.service.ServeHTTP(w, r.WithContext(front.WithTarget(r.Context(), target)))
}

func (s *site) processes(opts ...connect.ClientOption) processpb.ProcessClient {
	return processpb.NewProcessClient(s.Client(), s.URL, opts...)
}

func (s *site) files(opts ...connect.ClientOption) filesystempb.FilesystemClient {
	return filesystempb.NewFilesystemClient(s.Client(), s.URL, opts...)
}

// as makes the user of calls known as SDKs do.
func as(ctx context.Context, user string) context.Context {
	ctx, info := connect.NewClientContext(ctx)
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, "")
	info.RequestHeader().Set("Authorization", r.Header.Get("Authorization"))
	return ctx
}

// do sends a request and returns the answer's body.
func (s *site) do(t *testing.T, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if req.Header.Get("Accept-Encoding") == "" {
		req.Header.Set("Accept-Encoding", "identity")
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// wantError checks that an answer is an error of envd.
func wantError(t *testing.T, resp *http.Response, body string, status int, message string) {
	t.Helper()
	var e struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%d %q: %v", resp.StatusCode, body, err)
	}
	if resp.StatusCode != status || e.Code != status || e.Message != message {
		t.Errorf("%d, code %d, %q; want %d %q", resp.StatusCode, e.Code, e.Message, status, message)
	}
}

func (s *site) put(t *testing.T, path, content string) {
	t.Helper()
	opts := sandbox.WriteOptions{Mode: new(fs.FileMode(0o644)), Parents: true}
	if err := s.host.Fake.WriteFile(t.Context(), s.id, path, strings.NewReader(content), opts); err != nil {
		t.Fatal(err)
	}
}

func (s *site) get(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	if err := s.host.ReadFile(t.Context(), s.id, path, 0, -1, &b); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "(missing)"
		}
		t.Fatal(err)
	}
	return b.String()
}

// wantCode checks that a call has failed with a code.
func wantCode(t *testing.T, err error, code connect.Code, part string) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%v; want %v with %q", err, code, part)
	}
}

func (s *site) call(r *http.Request) *call {
	target := &front.Target{ID: s.id, Port: front.EnvdPort, Record: s.rec}
	return newCall(s.host, r.WithContext(front.WithTarget(r.Context(), target)))
}
