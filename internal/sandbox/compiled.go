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
// snapshot, which the others are made of, too, and from the code, which they are to evaluate anyway.

const (
	// worthCompiling is how many children evaluate the same before it pays that one more is made.
	worthCompiling = 8
	// compileTime bounds how long that may take, which is a few milliseconds mostly.
	compileTime = 2 * time.Second
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
	snapshot string // its content hash
	code     [sha256.Size]byte
}

// code is what is known of it.
type code struct {
	asked int           // how many children were to evaluate it; guarded by codes.mu
	used  time.Time     // guarded by codes.mu
	begun bool          // somebody compiles it, or has; guarded by codes.mu
	size  int           // of encoded, in bytes; guarded by codes.mu
	done  chan struct{} // closed when that has ended

	// With what it compiles to, encoded for all; nil if it is not to be had. Written before done is closed.
	encoded *agent.Evaluation
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
	hash := b.manifest.ContentHash() // of a branch that is being written there is none
	// Where each sandbox has a process of its own, one more costs more than is saved.
	if b.isAwake() || hash == "" || m.opts.Engine.Each || len(e.Code) > maxCompiledCode {
		return e.encoded
	}
	key := codeKey{hash, e.hash()}
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
		if known.encoded != nil {
			return known.encoded
		}
	case <-ctx.Done():
	}
	return e.encoded
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
	ctx, cancel := context.WithTimeout(context.Background(), compileTime)
	defer cancel()
	compiled, err := m.compileIn(ctx, src, b.tag, code)
	switch {
	case err == nil && len(compiled) <= maxCompiled:
		if known.encoded, err = (agent.EvalRequest{Code: code, Compiled: compiled}).Encode(); err == nil {
			m.codes.keep(key, known, known.encoded.Size())
		}
	case err == nil:
		err = fmt.Errorf("it is %d bytes long, over %d", len(compiled), maxCompiled)
	case !errors.Is(err, agent.ErrNotShared) && ctx.Err() == nil:
		m.codes.forget(key, known)
	}
	if err != nil {
		m.opts.Log.Debug("code is not compiled for children together", "snapshot", b.tag, "reason", err)
	}
}

// compileIn has a child compile code that is there for nothing else.
func (m *Manager) compileIn(ctx context.Context, src *snapshot.Snapshot, tag, code string) ([]byte, error) {
	b, err := m.spawnTransient(ctx, src, tag, fmt.Sprintf("compiling code for children of %q", tag))
	if err != nil {
		return nil, err
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
