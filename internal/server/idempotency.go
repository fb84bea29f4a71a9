package server

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/api"
)

const (
	maxKeys = 1024           // remembered at once
	keyLife = 24 * time.Hour // for which one is remembered
)

// idempotency remembers the outcome of forks by the key their clients chose.
// It lives as long as the daemon, as do the sandboxes.
type idempotency struct {
	now func() time.Time

	mu    sync.Mutex
	byKey map[string]*attempt // guarded by mu
	order []string            // keys, oldest first; guarded by mu
}

// attempt is one fork under a key.
type attempt struct {
	body   [sha256.Size]byte
	at     time.Time
	done   chan struct{} // closed when the rest is set
	result *api.ForkPartial
	err    error
}

func newIdempotency(now func() time.Time) *idempotency {
	return &idempotency{now: now, byKey: make(map[string]*attempt)}
}

// do returns what fork returned to the first call with this key, and calls it
// if this is the first. A failure is not remembered: nothing was made, so the
// next attempt may try. ctx bounds the waiting, not the fork.
func (i *idempotency) do(ctx context.Context, key string, body [sha256.Size]byte,
	fork func() (*api.ForkPartial, error)) (*api.ForkPartial, error) {
	a, first, err := i.enter(key, body)
	if err != nil {
		return nil, err
	}
	if first {
		go func() {
			a.result, a.err = fork()
			if a.err != nil {
				i.forget(key, a)
			}
			close(a.done)
		}()
	}
	select {
	case <-a.done:
		return a.result, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enter finds the attempt with a key or begins it.
func (i *idempotency) enter(key string, body [sha256.Size]byte) (a *attempt, first bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expire()
	if a := i.byKey[key]; a != nil {
		if a.body != body {
			return nil, false, refuse(api.ErrorCodeAlreadyExists, "choose a new key for a new request",
				"Idempotency-Key: %s was used with another body", quote(key))
		}
		return a, false, nil
	}
	a = &attempt{body: body, at: i.now(), done: make(chan struct{})}
	i.byKey[key] = a
	i.order = append(i.order, key)
	return a, true, nil
}

// expire drops what is too old or too much. The caller holds mu.
func (i *idempotency) expire() {
	for len(i.order) > 0 {
		a := i.byKey[i.order[0]]
		if len(i.order) < maxKeys && i.now().Sub(a.at) < keyLife {
			return
		}
		delete(i.byKey, i.order[0])
		i.order = i.order[1:]
	}
}

func (i *idempotency) forget(key string, a *attempt) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byKey[key] == a {
		delete(i.byKey, key)
		i.order = slices.DeleteFunc(i.order, func(k string) bool { return k == key })
	}
}
