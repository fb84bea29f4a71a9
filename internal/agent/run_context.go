package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Context is an interpreter that keeps state between runs.
type Context struct {
	ID       string
	Language string
	Cwd      string // in which it was started
	User     string // as asked for; empty: root
}

// ContextSpec asks for a context.
type ContextSpec struct {
	Language string      // default Python
	Env      []wire.Name // KEY=VALUE, for all of its life
	Cwd      string      // default: the home of the user
	User     string      // default root
}

// CreateContext starts a context. It has what the warm runtime of its language had imported and run at its start. The error
// has code CodeNoInterpreter if the image lacks the language's program, and its Detail is the package that has it.
func (c *Client) CreateContext(ctx context.Context, spec ContextSpec) (Context, error) {
	kind, err := kindOf(spec.Language)
	if err != nil {
		return Context{}, err
	}
	id := make([]byte, 8)
	rand.Read(id)
	info, err := c.startContext(ctx, wire.ContextStart{
		Name: "ctx" + hex.EncodeToString(id), Kind: kind, Env: spec.Env, Cwd: wire.Name(spec.Cwd), User: spec.User,
	})
	return contextFrom(info), err
}

// WarmContext starts the context of a language ahead of its first use. The context of the warm Python has a StartRuntime.
func (c *Client) WarmContext(ctx context.Context, language, cwd string) (Context, error) {
	kind, err := kindOf(language)
	if err != nil {
		return Context{}, err
	}
	info, err := c.startContext(ctx, wire.ContextStart{Name: kind, Kind: kind, Cwd: wire.Name(cwd)})
	return contextFrom(info), err
}

func (c *Client) startContext(ctx context.Context, req wire.ContextStart) (wire.RuntimeInfo, error) {
	info, err := request[wire.RuntimeInfo](ctx, c, wire.OpContextStart, req)
	if err == nil {
		c.Adopt(info)
	}
	return info, err
}

func contextFrom(info wire.RuntimeInfo) Context {
	return Context{ID: contextID(info.Name), Language: info.Kind, Cwd: string(info.Cwd), User: info.User}
}

// Contexts lists the contexts in the order in which they were started.
func (c *Client) Contexts(ctx context.Context) ([]Context, error) {
	info, err := c.Ping(ctx)
	if err != nil {
		return nil, err
	}
	contexts := make([]Context, 0, len(info.Runtimes))
	for _, r := range info.Runtimes {
		if r.Starts > 0 {
			contexts = append(contexts, contextFrom(r))
		}
	}
	return contexts, nil
}

// RemoveContext ends a context and everything that it has started. A run in it ends with an error.
func (c *Client) RemoveContext(ctx context.Context, id string) error {
	if id == DefaultContext {
		return wire.Errorf(wire.CodeBadRequest, "context", "the context %s cannot be removed; it can be restarted", id)
	}
	name := runtimeName(id)
	err := c.order(ctx, wire.OpContextStop, wire.ContextStop{Name: name})
	if err == nil {
		c.forget(name)
	}
	return err
}

// forget drops what is known of a runtime.
func (c *Client) forget(name string) {
	c.mu.Lock()
	e := c.evaluators[name]
	c.evaluators = maps.Clone(c.evaluators) // Close iterates without the lock
	delete(c.evaluators, name)
	c.mu.Unlock()
	if e != nil {
		e.disconnect()
	}
}

// RestartContext starts a context's interpreter again, without its state. A run in it ends with a *RestartedError.
func (c *Client) RestartContext(ctx context.Context, id string) error {
	name := runtimeName(id)
	info, err := c.Ping(ctx) // what is known of it may be old
	if err != nil {
		return err
	}
	i := slices.IndexFunc(info.Runtimes, func(r wire.RuntimeInfo) bool { return r.Name == name })
	if i < 0 {
		return wire.Errorf(wire.CodeNotFound, "context", "there is no context %q", id)
	}
	fresh, err := request[wire.RuntimeInfo](ctx, c, wire.OpRuntimeRecover, wire.RuntimeRecover{Name: name, Starts: info.Runtimes[i].Starts, Kill: true})
	if err != nil {
		return err
	}
	if e, err := c.evaluator(ctx, name); err == nil {
		e.learn(fresh)
		e.disconnect()
	}
	return nil
}
