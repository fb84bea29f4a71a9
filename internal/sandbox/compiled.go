package sandbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Children of a snapshot often evaluate the same code first, and would each compile it, which can be more than half of what an
// interpreter does for that. So it is compiled once, and the others are sent the result beside the code.
//
// Whoever can make that up executes code in all of them. So it comes from a child that was made for it, that nobody else
// can reach, that executes nothing of the code, and that ends then. Guests have no network; so what it says follows from the
// snapshot, which the others are made of, too, and from the code, which they are to evaluate anyway. It stays within the
// cell: one that was taken over could make it up.

const (
	// worthCompiling is how many children evaluate the same before it pays that one more is made.
	worthCompiling = 8
	// compileTime bounds how long that may take, which is a few milliseconds mostly; for long code it is
	// more, by so much for each KiB.
	compileTime       = 2 * time.Second
	compileTimeForKiB = 50 * time.Millisecond
	// Longer code is not compiled ahead, and a longer result is not sent.
	maxCompiledCode = 256 << 10
	maxCompiled     = 1 << 20
	// keptCodes is how many codes are known, with what they compile to or without, and keptBytes how much memory they take.
	keptCodes = 64
	keptBytes = 16 << 20
)

// codes is what snapshots' interpreters have compiled.
type codes struct {
	mu    sync.Mutex
	known map[codeKey]*code // guarded by mu
	bytes int               // sum of their sizes; guarded by mu
}

// codeKey is code that children of a snapshot begin with.
type codeKey struct {
	machine string // hash of all that the children begin as
	cell    string // its name
	code    [sha256.Size]byte
}

// code is what is known of it.
type code struct {
	asked int           // how many children were to evaluate it; guarded by codes.mu
	used  time.Time     // guarded by codes.mu
	begun bool          // somebody compiles it, or has; guarded by codes.mu
	size  int           // of compiled, in bytes; guarded by codes.mu
	done  chan struct{} // closed when that has ended

	compiled []byte // what it compiles to; nil if that is not to be had. Written before done is closed
}

// ask notes that one of some children that begin with code asks for it, and tells what is known of it. The caller compiles it
// if it is told to.
func (c *codes) ask(key codeKey, among int) (known *code, compile bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known = c.known[key]
	if known == nil {
		c.makeRoom(1, 0)
		known = &code{done: make(chan struct{})}
		c.known[key] = known
	}
	known.asked++
	known.used = time.Now()
	compile = !known.begun && max(known.asked, among) >= worthCompiling
	known.begun = known.begun || compile
	return known, compile
}

// makeRoom forgets what was not used for the longest time, for some more codes or bytes. Precondition: mu is held.
func (c *codes) makeRoom(codes, bytes int) {
	if c.known == nil {
		c.known = make(map[codeKey]*code)
	}
	for len(c.known) > 0 && (len(c.known)+codes > keptCodes || c.bytes+bytes > keptBytes) {
		var oldest codeKey
		for key, k := range c.known {
			if first := c.known[oldest]; first == nil || k.used.Before(first.used) {
				oldest = key
			}
		}
		c.remove(oldest)
	}
}

// remove forgets code. Precondition: mu is held.
func (c *codes) remove(key codeKey) {
	c.bytes -= c.known[key].size
	delete(c.known, key)
}

// keep notes how much memory code takes that is compiled now.
func (c *codes) keep(key codeKey, was *code, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[key] == was {
		was.used = time.Now()
		c.makeRoom(0, bytes)
		was.size = bytes
		c.bytes += bytes
	}
}

// forget has code be compiled another time, as it failed for a reason that passes.
func (c *codes) forget(key codeKey, was *code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[key] == was {
		c.remove(key)
	}
}

// encoded returns an evaluation as a sandbox is sent it: with what the code compiles to, if the sandbox has
// done nothing yet and that is known, or worth finding out.
func (m *Manager) encoded(ctx context.Context, b *box, e *Evaluation) *agent.Evaluation {
	// Where each sandbox has a process of its own, one more costs more than is saved.
	if b.isAwake() || m.opts.Engine.Each || len(e.Code) > maxCompiledCode {
		return e.encoded
	}
	key, ok := e.key(b)
	if !ok {
		return e.encoded
	}
	known, compile := m.codes.ask(key, e.Among)
	if compile {
		m.compile(key, known, b, e.Code)
	}
	if e.Among < worthCompiling {
		select {
		case <-known.done:
		default:
			return e.encoded
		}
	}
	select {
	case <-known.done:
		if known.compiled != nil {
			return e.with(known)
		}
	case <-ctx.Done():
	}
	return e.encoded
}

// prepared is what is done once for all sandboxes that an evaluation is for.
type prepared struct {
	encoded *agent.Evaluation // immutable

	mu       sync.Mutex
	hash     [sha256.Size]byte             // of the code, if there are machines; guarded by mu
	machines map[*snapshot.Manifest]string // their hashes; guarded by mu
	compiled map[*code]*agent.Evaluation   // with what the code compiles to; guarded by mu
}

// key returns what the code is known by for children that begin as a sandbox does, unless that is a branch that
// is being written.
func (e *Evaluation) key(b *box) (key codeKey, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.machines == nil {
		e.hash, e.machines = sha256.Sum256([]byte(e.Code)), make(map[*snapshot.Manifest]string)
	}
	machine := e.machines[b.manifest]
	if machine == "" {
		machine = b.manifest.MachineHash()
		e.machines[b.manifest] = machine
	}
	return codeKey{machine, b.machine.Cell().Name, e.hash}, machine != ""
}

// with returns the evaluation with what its code compiles to. What names it in a guest is its own: a late interrupt of
// one request is not to hit that of another.
func (e *Evaluation) with(known *code) *agent.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.compiled[known] == nil {
		encoded, err := agent.EvalRequest{Code: e.Code, Compiled: known.compiled}.Encode()
		if err != nil { // it is too long together
			encoded = e.encoded
		}
		if e.compiled == nil {
			e.compiled = make(map[*code]*agent.Evaluation)
		}
		e.compiled[known] = encoded
	}
	return e.compiled[known]
}

// compile finds out what code compiles to in children of the snapshot that a sandbox is of.
func (m *Manager) compile(key codeKey, known *code, b *box, code string) {
	defer close(known.done)
	src := b.origin()
	if src == nil {
		m.codes.forget(key, known)
		return
	}
	defer src.Release()
	ctx, cancel := context.WithTimeout(context.Background(), compileTime+time.Duration(len(code)>>10)*compileTimeForKiB)
	defer cancel()
	compiled, err := m.compileIn(ctx, src, b, code)
	switch {
	case err == nil && len(compiled) <= maxCompiled:
		known.compiled = compiled
		m.codes.keep(key, known, len(compiled))
	case err == nil:
		err = fmt.Errorf("it is %d bytes long, over %d", len(compiled), maxCompiled)
	case !errors.Is(err, agent.ErrNotShared) && ctx.Err() == nil:
		m.codes.forget(key, known)
	}
	if err != nil {
		m.opts.Log.Debug("code is not compiled for children together", "snapshot", b.tag, "reason", err)
	}
}

// compileIn has a child compile code that is there for nothing else, where a sandbox lives that is to evaluate it.
func (m *Manager) compileIn(ctx context.Context, src *snapshot.Snapshot, one *box, code string) ([]byte, error) {
	b, err := m.spawnTransient(ctx, src, one.tag, fmt.Sprintf("compiling code for children of %q", one.tag))
	if err != nil {
		return nil, err
	}
	if b.machine.Cell() != one.machine.Cell() {
		b.close()
		return nil, errors.New("a child was made in another process")
	}
	defer func() { go b.close() }() // many wait for the code, and nobody for that
	compiled, err := atOnce(ctx, b, true, func(ctx context.Context) (*[]byte, error) {
		compiled, err := b.agent.Compile(ctx, b.manifest.Runtime, code)
		return &compiled, err
	})
	if err != nil {
		return nil, err
	}
	return *compiled, nil
}
