package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// usage is what the guest's processors had done when somebody looked last.
type usage struct {
	busy, total int64 // nanoseconds since the guest's boot
	percent     float64
}

// leastUsage is how much time a guest's clock must have gone on for its usage to be
// measured again.
const leastUsage = 10 * time.Millisecond

// Metrics tells what a sandbox uses. It is no use of the sandbox: a paused one stays
// paused.
func (m *Manager) Metrics(ctx context.Context, id string) (*Metrics, error) {
	b, err := m.settled(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, measureTime, fail(Timeout, "", "sandbox %s does not tell what it uses within %s", id, measureTime))
	defer cancel()
	ctx, stop := b.machine.Cell().Watch(ctx, min(silentTime, measureTime/3)) // and as long again until it is known to be silent
	defer stop()
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	b.machine.Refresh()
	in, err := b.agent.Metrics(ctx)
	if err == nil && b.firstLook(in) {
		select {
		case <-time.After(firstUsage):
			in, err = b.agent.Metrics(ctx)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return nil, b.guestError(err, "measuring")
	}
	return &Metrics{
		Time: time.Unix(0, in.WallNS).UTC(), VCPUs: in.CPUs, CPU: b.load(in),
		MemTotal: in.MemoryTotal, MemUsed: in.MemoryUsed, MemCache: in.MemoryCache, DiskTotal: in.DiskTotal, DiskUsed: in.DiskUsed,
		Private: b.machine.PrivateBytes(),
	}, nil
}

// measureTime is how long a guest may take to tell what it uses: whoever asks all of them is not
// to wait for the one that does not answer.
const measureTime = 15 * time.Second

// firstUsage is over which time the processors' use is measured of whom nobody has asked for
// it before. What a guest says then is of its whole life, which began before the fork.
const firstUsage = 100 * time.Millisecond

// firstLook reports whether nobody has looked before, and notes that somebody has.
func (b *box) firstLook(in wire.Metrics) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.usage.total > 0 {
		return false
	}
	b.usage = usage{busy: in.CPUBusyNS, total: in.CPUTotalNS}
	return true
}

// load returns the use of the processors since the last time in percent of one.
func (b *box) load(in wire.Metrics) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	busy, total := in.CPUBusyNS-b.usage.busy, in.CPUTotalNS-b.usage.total
	if in.CPUs < 1 || busy < 0 || total < int64(leastUsage) {
		return b.usage.percent
	}
	b.usage = usage{in.CPUBusyNS, in.CPUTotalNS, 100 * float64(in.CPUs) * float64(busy) / float64(total)}
	return b.usage.percent
}

// User looks an account of the sandbox up, by its name or number.
func (m *Manager) User(ctx context.Context, id, name string) (*User, error) {
	b, done, err := m.use(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	u, err := b.agent.User(ctx, name)
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeNoSuchUser {
		return nil, fail(NotFound, "", "there is no user %q", name)
	}
	if err != nil {
		return nil, b.guestError(err, "looking up user %q", name)
	}
	return &User{Name: u.Name, UID: u.UID, GID: u.GID, Home: u.Home}, nil
}
