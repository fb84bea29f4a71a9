package servertest

import (
	"context"
	"encoding/json"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// live limits a sandbox's life. Nothing happens at its end.
func (b *box) live(d time.Duration) {
	b.lifetime, b.info.ExpiresAt = d, time.Time{}
	if d > 0 && b.info.State != sandbox.Paused {
		b.info.ExpiresAt = time.Now().Add(d)
	}
}

func (b *box) resume(d time.Duration) {
	b.info.State, b.info.PausedAt = sandbox.Running, time.Time{}
	b.live(d)
}

// change does something to a sandbox, paused or not, and describes it.
func (f *Fake) change(id string, do func(*box) error) (*sandbox.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.find(id)
	if err == nil {
		err = do(b)
	}
	if err != nil {
		return nil, err
	}
	info := b.info
	return &info, nil
}

// Pause marks a sandbox. What runs in it goes on.
func (f *Fake) Pause(_ context.Context, id string) (*sandbox.Info, error) {
	return f.change(id, func(b *box) error {
		if b.info.State == sandbox.Paused {
			return fault(sandbox.FailedPrecondition, "`forkd resume "+id+"` has it go on", "sandbox %s is paused already", id)
		}
		b.info.State, b.info.PausedAt, b.info.ExpiresAt = sandbox.Paused, time.Now(), time.Time{}
		return nil
	})
}

// Resume undoes Pause.
func (f *Fake) Resume(_ context.Context, id string, lifetime time.Duration) (*sandbox.Info, error) {
	return f.change(id, func(b *box) error {
		if b.info.State == sandbox.Paused {
			if lifetime == 0 {
				lifetime = b.lifetime
			}
			b.resume(lifetime)
		}
		return nil
	})
}

// SetLifetime sets the end.
func (f *Fake) SetLifetime(_ context.Context, id string, d time.Duration) (*sandbox.Info, error) {
	return f.change(id, func(b *box) error {
		b.live(d)
		return nil
	})
}

// ExtendLifetime puts the end off.
func (f *Fake) ExtendLifetime(_ context.Context, id string, d time.Duration) (*sandbox.Info, error) {
	return f.change(id, func(b *box) error {
		if b.lifetime > 0 && time.Now().Add(d).After(b.info.ExpiresAt) {
			b.live(d)
		}
		return nil
	})
}

// SetFront replaces the record of a front end.
func (f *Fake) SetFront(_ context.Context, id string, update func(json.RawMessage) (json.RawMessage, error)) error {
	_, err := f.change(id, func(b *box) (err error) {
		b.info.Front, err = update(b.info.Front)
		return err
	})
	return err
}

// Metrics are made up.
func (f *Fake) Metrics(_ context.Context, id string) (*sandbox.Metrics, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	if b.info.Metadata["falls"] != "" { // when somebody looks
		return nil, fault(sandbox.SandboxDead, "fork another one", "sandbox %s has ended: it fell", id)
	}
	return &sandbox.Metrics{
		Time: time.Now(), VCPUs: 1, CPU: 12.5, MemTotal: 512 << 20, MemUsed: 100 << 20, MemCache: 50 << 20,
		DiskTotal: 4 << 30, DiskUsed: 1 << 20, Private: 2 << 20,
	}, nil
}
