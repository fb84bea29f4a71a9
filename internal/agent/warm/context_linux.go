package warm

import (
	"slices"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// StartContext starts a runtime on demand: one more of its kind, on a port that nobody has, with what the first of the kind
// was warmed with. The error is a *wire.Error.
func (m *Manager) StartContext(req wire.ContextStart, cancel <-chan struct{}) (wire.RuntimeInfo, error) {
	start := wire.RuntimeStart{Name: req.Name, Kind: req.Kind, Env: req.Env, Cwd: req.Cwd, User: req.User, Port: anyPort}
	if start.Kind == "" {
		return wire.RuntimeInfo{}, wire.Errorf(wire.CodeBadRequest, "kind", "a context needs a kind")
	}
	for _, r := range m.all() {
		if r.req.Kind == req.Kind {
			start.Program, start.Imports, start.Warmup = r.req.Program, r.req.Imports, r.req.Warmup
			break
		}
	}
	info, err := m.Start(start, cancel)
	if err != nil && wire.AsError(err).Code == wire.CodeExists {
		m.settled(req.Name)
	}
	return info, err
}

// settled returns when nobody is starting the runtime, so that a client that was not the first finds it warm.
func (m *Manager) settled(name string) {
	if r, err := m.find(name); err == nil {
		r.op.Lock()
		defer r.op.Unlock()
	}
}

// anyPort asks for a port that is free.
const anyPort = ^uint32(0)

// freePort returns the lowest port from wire.RuntimePort on that no runtime has. Precondition: Manager.mu is held.
func (m *Manager) freePort() uint32 {
	port := wire.RuntimePort
	for slices.ContainsFunc(m.runtimes, func(r *Runtime) bool { return r.req.Port == port }) {
		port++
	}
	return port
}

// Stop ends a runtime and everything that it has started, and forgets it.
func (m *Manager) Stop(name string) error {
	r, err := m.find(name)
	if err != nil {
		return err
	}
	r.op.Lock()
	defer r.op.Unlock()
	if r.alive() {
		r.kill()
	}
	r.discard()
	m.remove(r)
	return nil
}

func (m *Manager) remove(r *Runtime) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runtimes = slices.DeleteFunc(slices.Clone(m.runtimes), func(x *Runtime) bool { return x == r })
}
