package servertest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

type codeContext struct {
	sandbox.CodeContext
	count int // guarded by Fake.mu
}

// interpreter finds a context, and makes that of a language. The caller holds mu.
func (b *box) interpreter(id, language string) (*codeContext, error) {
	name := id
	switch {
	case id == "" && (language == "" || language == sandbox.Python):
		name, language = sandbox.DefaultContext, sandbox.Python
	case id == sandbox.DefaultContext:
		language = sandbox.Python
	case id == "":
		name = language
	}
	for _, c := range b.contexts {
		if c.ID == name {
			return c, nil
		}
	}
	if id != "" && id != sandbox.DefaultContext {
		return nil, fault(sandbox.NotFound, "", "there is no context %q", id)
	}
	c := &codeContext{CodeContext: sandbox.CodeContext{ID: name, Language: language, Cwd: "/root"}}
	b.contexts = append(b.contexts, c)
	return c, nil
}

// RunCode looks the code up: "print", "display", "raise", "give up", which raises a TimeoutError of its own, "late",
// which its time limit ends, "die", and "sleep", which lasts until it is cancelled.
func (f *Fake) RunCode(ctx context.Context, id string, spec sandbox.RunSpec, event func(sandbox.RunEvent) error) (*sandbox.RunResult, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	defer f.enter()()
	f.mu.Lock()
	c, err := b.interpreter(spec.Context, spec.Language)
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	c.count++
	res := &sandbox.RunResult{Count: c.count}
	f.mu.Unlock()
	var events []sandbox.RunEvent
	switch spec.Code {
	case "print":
		events = []sandbox.RunEvent{{Stdout: "out\n"}, {Stderr: "err " + spec.Env["A"] + "\n"}}
	case "display":
		events = []sandbox.RunEvent{{Result: &sandbox.RichResult{
			Main: true, Chart: json.RawMessage(`{"type":"line"}`),
			Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"4"`), "application/json": json.RawMessage(`{"a":[1]}`)},
		}}}
	case "raise":
		res.Error = raised("ValueError", "no").Error
	case "give up":
		res.Error = raised("TimeoutError", "no answer").Error
	case "late":
		res.Error = raised("KeyboardInterrupt", "").Error
		res.Error.Type, res.Error.Message = "TimeoutError", "evaluation was interrupted after 1s"
	case "die":
		res.Lost = true
	case "sleep":
		if err := event(sandbox.RunEvent{Stdout: "asleep\n"}); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, e := range events {
		if err := event(e); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// CreateContext makes a context.
func (f *Fake) CreateContext(_ context.Context, id string, spec sandbox.ContextSpec) (*sandbox.CodeContext, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	c := &codeContext{CodeContext: sandbox.CodeContext{ID: fmt.Sprintf("ctx%d", f.next), Language: spec.Language, Cwd: spec.Cwd}}
	if c.Language == "" {
		c.Language = sandbox.Python
	}
	b.contexts = append(b.contexts, c)
	out := c.CodeContext
	return &out, nil
}

// Contexts lists contexts.
func (f *Fake) Contexts(_ context.Context, id string) ([]sandbox.CodeContext, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := b.interpreter("", ""); err != nil {
		return nil, err
	}
	var list []sandbox.CodeContext
	for _, c := range b.contexts {
		list = append(list, c.CodeContext)
	}
	return list, nil
}

// RemoveContext forgets a context.
func (f *Fake) RemoveContext(_ context.Context, id, name string) error {
	if name == sandbox.DefaultContext {
		return fault(sandbox.InvalidArgument, "", "the context %s cannot be removed", name)
	}
	return f.onContext(id, name, func(b *box, at int) { b.contexts = slices.Delete(b.contexts, at, at+1) })
}

// RestartContext forgets its runs.
func (f *Fake) RestartContext(_ context.Context, id, name string) error {
	return f.onContext(id, name, func(b *box, at int) { b.contexts[at].count = 0 })
}

func (f *Fake) onContext(id, name string, do func(*box, int)) error {
	b, err := f.box(id)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at := slices.IndexFunc(b.contexts, func(c *codeContext) bool { return c.ID == name })
	if at < 0 {
		return fault(sandbox.NotFound, "", "there is no context %q", name)
	}
	do(b, at)
	return nil
}
