package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/e2b/template"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// domain is a Manager without machines: it keeps what it is told.
type domain struct {
	mu        sync.Mutex
	boxes     map[string]*sandbox.Info
	envs      map[string]map[string]string
	snapshots map[string]*sandbox.SnapshotInfo
	ran       []sandbox.Command
	started   []sandbox.ProcessSpec
	wrote     map[string]string
	next      int
	untold    map[string]bool // sandboxes whose process has not told of them yet, and whether it does when it is waited for

	forkErr error
	onFork  func() // called while a fork is under way
	exit    func(cmd sandbox.Command) int
}

func newDomain() *domain {
	d := &domain{
		boxes: map[string]*sandbox.Info{}, envs: map[string]map[string]string{},
		untold: map[string]bool{}, snapshots: map[string]*sandbox.SnapshotInfo{}, wrote: map[string]string{},
	}
	d.snapshots["pyagent"] = &sandbox.SnapshotInfo{
		Tag: "pyagent", CreatedAt: time.Now().Add(-time.Hour), Status: "ready", Bootable: true, VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096,
	}
	return d
}

func fault(code sandbox.Code, format string, args ...any) *sandbox.Error {
	return &sandbox.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (d *domain) Fork(_ context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forkErr != nil {
		return nil, d.forkErr
	}
	if d.onFork != nil {
		d.onFork()
	}
	snap := d.snapshots[spec.Tag]
	if snap == nil {
		return nil, fault(sandbox.NotFound, "there is no snapshot %q", spec.Tag)
	}
	return d.fork(spec, snap.BranchedFrom), nil
}

func (d *domain) fork(spec sandbox.ForkSpec, source string) (made []sandbox.ForkResult) {
	for range spec.N {
		d.next++
		box := &sandbox.Info{
			ID: fmt.Sprintf("sb%012x", d.next), SnapshotTag: spec.Tag, State: sandbox.Running, BranchedFrom: source,
			CreatedAt: time.Now(), VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096,
			Metadata: spec.Metadata, OnTimeout: spec.OnTimeout, AutoResume: spec.AutoResume, Front: spec.Front,
		}
		if spec.Lifetime > 0 {
			box.ExpiresAt = box.CreatedAt.Add(spec.Lifetime)
		}
		d.boxes[box.ID], d.envs[box.ID] = box, spec.Env
		info := *box
		made = append(made, sandbox.ForkResult{Sandbox: &info})
	}
	return made
}

func (d *domain) ForkSandbox(_ context.Context, id string, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	box, err := d.box(id)
	if err != nil {
		return nil, err
	}
	spec.Tag = box.SnapshotTag
	return d.fork(spec, id), nil
}

func (d *domain) box(id string) (*sandbox.Info, error) {
	if box := d.boxes[id]; box != nil {
		return box, nil
	}
	return nil, fault(sandbox.NotFound, "there is no sandbox %q", id)
}

func (d *domain) Sandboxes() (list []sandbox.Info) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, box := range d.boxes {
		list = append(list, *box)
	}
	return list
}

func (d *domain) Sandbox(id string) (*sandbox.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := d.copy(id)
	if _, untold := d.untold[id]; untold && err == nil {
		info.Untold, info.Front, info.Metadata, info.ExpiresAt = true, nil, nil, time.Time{}
	}
	return info, err
}

func (d *domain) Known(_ context.Context, id string) (*sandbox.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if tells, untold := d.untold[id]; untold && !tells {
		return nil, fault(sandbox.Timeout, "waiting until sandbox %s is taken over", id)
	}
	delete(d.untold, id)
	return d.copy(id)
}

func (d *domain) copy(id string) (*sandbox.Info, error) {
	box, err := d.box(id)
	if err != nil {
		return nil, err
	}
	info := *box
	return &info, nil
}

func (d *domain) Kill(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.box(id); err != nil {
		return err
	}
	delete(d.boxes, id)
	return nil
}

// change does something to a sandbox.
func (d *domain) change(id string, do func(*sandbox.Info) error) (*sandbox.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	box, err := d.box(id)
	if err == nil {
		err = do(box)
	}
	if err != nil {
		return nil, err
	}
	return d.copy(id)
}

func (d *domain) Pause(_ context.Context, id string) (*sandbox.Info, error) {
	return d.change(id, func(box *sandbox.Info) error {
		if box.State == sandbox.Paused {
			return fault(sandbox.FailedPrecondition, "paused already")
		}
		box.State, box.PausedAt, box.ExpiresAt = sandbox.Paused, time.Now(), time.Time{}
		return nil
	})
}

func (d *domain) Unpause(_ context.Context, id string, life time.Duration) (*sandbox.Info, error) {
	return d.change(id, func(box *sandbox.Info) error {
		if box.State == sandbox.Paused {
			box.State, box.PausedAt, box.ExpiresAt = sandbox.Running, time.Time{}, time.Now().Add(life)
		}
		return nil
	})
}

func (d *domain) SetLifetime(_ context.Context, id string, life time.Duration) (*sandbox.Info, error) {
	return d.change(id, func(box *sandbox.Info) error {
		box.ExpiresAt = time.Now().Add(life)
		return nil
	})
}

func (d *domain) ExtendLifetime(_ context.Context, id string, life time.Duration) (*sandbox.Info, error) {
	return d.change(id, func(box *sandbox.Info) error {
		if end := time.Now().Add(life); end.After(box.ExpiresAt) {
			box.ExpiresAt = end
		}
		return nil
	})
}

func (d *domain) SetFront(_ context.Context, id string, update func(json.RawMessage) (json.RawMessage, error)) error {
	_, err := d.change(id, func(box *sandbox.Info) (err error) {
		box.Front, err = update(box.Front)
		return err
	})
	return err
}

func (d *domain) Metrics(_ context.Context, id string) (*sandbox.Metrics, error) {
	if _, err := d.Sandbox(id); err != nil {
		return nil, err
	}
	return &sandbox.Metrics{Time: time.Now(), VCPUs: 1, CPU: 12.5, MemTotal: 512 << 20, MemUsed: 1 << 20, DiskTotal: 4 << 30}, nil
}

func (d *domain) Environment(id string) (map[string]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.box(id)
	return d.envs[id], err
}

func (d *domain) Branch(_ context.Context, id string, spec sandbox.BranchSpec) (*sandbox.SnapshotInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.box(id); err != nil {
		return nil, err
	}
	if spec.Tag == "" {
		d.next++
		spec.Tag = fmt.Sprintf("br-%012x", d.next)
	}
	if d.snapshots[spec.Tag] != nil {
		return nil, fault(sandbox.AlreadyExists, "snapshot %q exists already", spec.Tag)
	}
	made := &sandbox.SnapshotInfo{
		Tag: spec.Tag, CreatedAt: time.Now(), BranchedFrom: id, Status: "ready", Bootable: true, VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096,
	}
	d.snapshots[spec.Tag] = made
	info := *made
	return &info, nil
}

func (d *domain) Snapshots() (list []sandbox.SnapshotInfo, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.snapshots {
		list = append(list, *s)
	}
	return list, nil
}

func (d *domain) Snapshot(tag string) (*sandbox.SnapshotInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.snapshots[tag]
	if s == nil {
		return nil, fault(sandbox.NotFound, "there is no snapshot %q", tag)
	}
	info := *s
	for id, box := range d.boxes {
		if box.SnapshotTag == tag {
			info.Dependents = append(info.Dependents, id)
		}
	}
	return &info, nil
}

func (d *domain) RemoveSnapshots(tags []string, _ sandbox.RemoveOptions) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, tag := range tags {
		delete(d.snapshots, tag)
	}
	return tags, nil
}

func (d *domain) Exec(_ context.Context, id string, cmd sandbox.Command) (*sandbox.CommandResult, error) {
	if _, err := d.Sandbox(id); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	cmd.Env = maps.Clone(cmd.Env)
	d.ran = append(d.ran, cmd)
	fmt.Fprintf(cmd.Stdout, "did %s\n", cmd.Args[len(cmd.Args)-1])
	code := 0
	if d.exit != nil {
		code = d.exit(cmd)
	}
	if code != 0 {
		fmt.Fprintf(cmd.Stderr, "it is broken")
	}
	return &sandbox.CommandResult{ExitCode: code}, nil
}

func (d *domain) StartProcess(_ context.Context, id string, spec sandbox.ProcessSpec) (sandbox.Attachment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.started = append(d.started, spec)
	return attachment{sandbox.Process{PID: 7, Args: spec.Args}}, nil
}

func (d *domain) AttachProcess(context.Context, string, sandbox.ProcessRef) (sandbox.Attachment, error) {
	return attachment{sandbox.Process{PID: 7}}, nil
}

// attachment is to a process that says nothing.
type attachment struct{ p sandbox.Process }

func (a attachment) Process() sandbox.Process      { return a.p }
func (a attachment) Recv() (sandbox.Output, error) { return sandbox.Output{}, io.EOF }
func (a attachment) Exit() sandbox.ProcessExit     { return sandbox.ProcessExit{} }
func (a attachment) Close() error                  { return nil }

func (d *domain) WriteFile(_ context.Context, id, path string, r io.Reader, _ sandbox.WriteOptions) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrote[path] = string(b)
	return nil
}

func (d *domain) User(_ context.Context, _, name string) (*sandbox.User, error) {
	if !slices.Contains([]string{"root", "user"}, name) {
		return nil, fault(sandbox.NotFound, "there is no user %q", name)
	}
	return &sandbox.User{Name: name, UID: 1000, Home: "/home/" + name}, nil
}

// site is an API over a domain of its own.
type site struct {
	*domain
	api   *API
	store *template.Store
	dir   string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{domain: newDomain(), dir: t.TempDir()}
	s.open(t)
	return s
}

// open starts the API anew, as a daemon does.
func (s *site) open(t *testing.T) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := template.Open(s.dir, map[string]string{"": "pyagent", "base": "pyagent", "code-interpreter-v1": "pyagent"})
	if err != nil {
		t.Fatal(err)
	}
	builder, err := template.NewBuilder(s.domain, store, s.dir+"/files", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(builder.Close)
	s.store = store
	s.api = New(Config{Manager: s.domain, Templates: store, Builder: builder, EnvdVersion: "0.6.4", Log: log})
}

// ask sends a request and returns the answer with its body.
func (s *site) ask(t *testing.T, method, path, body string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://127.0.0.1:8889"+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	} else {
		r.Body, r.ContentLength = http.NoBody, 0
	}
	w := httptest.NewRecorder()
	s.api.ServeHTTP(w, r)
	resp := w.Result()
	if resp.StatusCode >= 400 {
		var e Error
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Code != resp.StatusCode || e.Message == "" {
			t.Errorf("%s %s: status %d with the body %s", method, path, resp.StatusCode, w.Body)
		}
	}
	return resp, w.Body.String()
}

// want sends a request that has to be answered with a status, and decodes the
// answer into v unless it is nil.
func (s *site) want(t *testing.T, status int, method, path, body string, v any) *http.Response {
	t.Helper()
	resp, text := s.ask(t, method, path, body)
	if resp.StatusCode != status {
		t.Fatalf("%s %s %s: status %d, want %d: %s", method, path, body, resp.StatusCode, status, text)
	}
	if v != nil {
		dec := json.NewDecoder(bytes.NewReader([]byte(text)))
		if err := dec.Decode(v); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
	return resp
}

// create makes a sandbox.
func (s *site) create(t *testing.T, body string) sandboxJSON {
	t.Helper()
	var made sandboxJSON
	s.want(t, http.StatusCreated, "POST", "/v2/sandboxes", body, &made)
	return made
}

func (s *site) record(t *testing.T, id string) front.Record {
	t.Helper()
	info, err := s.Sandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := front.Decode(info.Front)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

var errBroken = errors.New("broken")
