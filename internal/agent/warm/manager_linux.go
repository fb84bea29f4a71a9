package warm

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Config is what a Manager needs.
type Config struct {
	Table    *proc.Table
	Cgroup   *proc.Cgroup // parent of the runtimes' cgroups; nil when there are none
	Spares   *proc.Cgroup // of spare interpreters, outside of Cgroup; nil when there are none
	Accounts proc.Accounts
	Env      []string                            // default environment
	Listen   func(port uint32) (*os.File, error) // opens a blocking listening socket
	Dir      string                              // for scripts; must be readable by every user
	Capture  string                              // for captured output; its file system limits how much there can be
	Patience time.Duration                       // how long a runtime may take to hold, or to answer when it is released
	Kinds    map[string]Kind
}

// Manager owns the warm runtimes of a guest.
type Manager struct {
	cfg Config

	launches atomic.Uint64 // names the runtimes' cgroups

	mu       sync.Mutex     // guards what follows; may be taken under Runtime.mu
	former   []*proc.Cgroup // of processes that have ended, while programs that they started live on
	spare    *spare         // nil: none, or no more
	runtimes []*Runtime     // in the order of their start; replaced, never changed
}

// New returns a Manager without runtimes.
func New(cfg Config) *Manager {
	// What a spare interpreter forks becomes a child of the agent, which needs this when it is not process 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return &Manager{cfg: cfg}
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Start starts a runtime and returns when it is warm. Closing cancel kills it before that. The error is a *wire.Error; the
// name is free again then.
func (m *Manager) Start(req wire.RuntimeStart, cancel <-chan struct{}) (wire.RuntimeInfo, error) {
	r, err := m.add(req)
	if err != nil {
		return wire.RuntimeInfo{}, err
	}
	r.op.Lock()
	defer r.op.Unlock()
	if err := r.launch(cancel); err != nil {
		m.remove(r)
		return wire.RuntimeInfo{}, err
	}
	return r.Info(), nil
}

// add validates a request and reserves its name and port.
func (m *Manager) add(req wire.RuntimeStart) (*Runtime, error) {
	if req.Kind == "" {
		req.Kind = req.Name
	}
	if req.Port == 0 {
		req.Port = wire.RuntimePort
	}
	if !validName.MatchString(req.Name) {
		return nil, wire.Errorf(wire.CodeBadRequest, "name", "runtime name %q must be 1 to 64 letters, digits, '_' or '-'", req.Name)
	}
	kind, known := m.cfg.Kinds[req.Kind]
	if !known {
		return nil, wire.Errorf(wire.CodeUnknownKind, "kind", "there is no kind of runtime called %q", req.Kind)
	}
	for _, module := range req.Imports {
		if strings.ContainsAny(module, "\n;") {
			return nil, wire.Errorf(wire.CodeBadRequest, "imports", "%q is not a module", module)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !kind.listens:
		req.Port = 0
	case req.Port == anyPort:
		req.Port = m.freePort()
	}
	for _, r := range m.runtimes {
		if r.req.Name == req.Name || r.req.Port == req.Port && req.Port != 0 {
			return nil, wire.Errorf(wire.CodeExists, "name", "runtime %q on port %d exists", r.req.Name, r.req.Port)
		}
	}
	r := newRuntime(m, req, kind)
	m.runtimes = append(slices.Clone(m.runtimes), r)
	return r, nil
}

func (m *Manager) find(name string) (*Runtime, error) {
	for _, r := range m.all() {
		if r.req.Name == name {
			return r, nil
		}
	}
	return nil, wire.Errorf(wire.CodeNotFound, "name", "there is no runtime %q", name)
}

func (m *Manager) all() []*Runtime {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runtimes
}

// List describes the runtimes, also those that are being started for the first time.
func (m *Manager) List() []wire.RuntimeInfo {
	var infos []wire.RuntimeInfo
	for _, r := range m.all() {
		infos = append(infos, r.Info())
	}
	return infos
}

// Interrupt interrupts the evaluation with the given id if it is running, and tells what is.
func (m *Manager) Interrupt(req wire.RuntimeInterrupt) (wire.RuntimeInterrupted, error) {
	r, err := m.find(req.Name)
	if err != nil {
		return wire.RuntimeInterrupted{}, err
	}
	return r.interrupt(req.Eval)
}

// Recover returns when the runtime answers, having started it again if it was lost or if the request says so.
func (m *Manager) Recover(req wire.RuntimeRecover, cancel <-chan struct{}) (wire.RuntimeInfo, error) {
	r, err := m.find(req.Name)
	if err != nil {
		return wire.RuntimeInfo{}, err
	}
	r.op.Lock()
	defer r.op.Unlock()
	if r.alive() {
		if !req.Kill || r.Info().Starts != req.Starts {
			return r.Info(), nil
		}
		r.kill()
	}
	if err := r.launch(cancel); err != nil {
		return wire.RuntimeInfo{}, err
	}
	return r.Info(), nil
}

// Hold brings every living runtime to a point where none of its code runs. When it fails, none is held.
func (m *Manager) Hold() error {
	deadline := time.Now().Add(m.cfg.Patience)
	err := m.each(func(r *Runtime) error { return r.driver.hold(deadline) })
	if err != nil {
		_ = m.Order(nil)
		_ = m.Await()
	}
	return err
}

// Rests reports whether no process of any runtime can execute an instruction until Order: each sleeps, and is alone in its
// cgroup.
func (m *Manager) Rests() bool {
	asleep := 0
	_ = m.each(func(r *Runtime) error {
		if d, ok := r.driver.(*direct); ok && d.resting() {
			asleep++
		}
		return nil
	})
	threads, err := m.cfg.Cgroup.Threads()
	return err == nil && len(threads) == asleep
}

// Order tells every held runtime to go on, reseeded if there are seeds. They do when they are thawed.
func (m *Manager) Order(seeds *Stream) error {
	return m.each(func(r *Runtime) error { return r.driver.release(seeds) })
}

// Renew has every living runtime reseed its generators, from wherever it stands frozen. It does when it is thawed.
func (m *Manager) Renew() error {
	return m.each(func(r *Runtime) error { return r.driver.renew() })
}

// Await returns when every runtime that was told to go on has said that it does.
func (m *Manager) Await() error {
	deadline := time.Now().Add(m.cfg.Patience)
	return m.each(func(r *Runtime) error { return r.driver.await(deadline) })
}

// each calls f for every runtime under its op lock, until one fails.
func (m *Manager) each(f func(*Runtime) error) error {
	for _, r := range m.all() {
		r.op.Lock()
		err := f(r)
		r.op.Unlock()
		if err != nil {
			return wire.Errorf(wire.AsError(err).Code, "runtime "+r.req.Name, "runtime %s: %v", r.req.Name, err)
		}
	}
	return nil
}

// Processes counts what lives in the runtimes' cgroups besides idle runtimes.
func (m *Manager) Processes() (int, error) {
	count, err := m.leftBehind()
	if err != nil {
		return 0, err
	}
	for _, r := range m.all() {
		n, err := r.processes()
		if err != nil {
			return 0, err
		}
		count += n
	}
	return count, nil
}

func (m *Manager) leftBehind() (count int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.former {
		pids, err := c.PIDs()
		if err != nil {
			return 0, err
		}
		count += len(pids)
	}
	return count, nil
}

// retire takes over the cgroup of a process that has ended, and removes those that have become empty.
func (m *Manager) retire(c *proc.Cgroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.former = slices.DeleteFunc(append(m.former, c), (*proc.Cgroup).Close)
}

// Close kills every runtime.
func (m *Manager) Close() {
	m.mu.Lock()
	s := m.spare
	m.mu.Unlock()
	m.dropSpare(s)
	for _, r := range m.all() {
		r.op.Lock()
		if r.alive() {
			r.kill()
		}
		r.discard()
		r.op.Unlock()
	}
}
