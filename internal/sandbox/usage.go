package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// usage is what a sandbox's processors had done when somebody looked last.
type usage struct {
	busy    time.Duration
	at      time.Time
	percent float64
}

// leastUsage is how long ago somebody must have looked for the usage to be measured again: most of that of a
// moment would be what the guest did to answer.
const leastUsage = 500 * time.Millisecond

// measureTime is how long a guest may take to tell what it uses: whoever asks all of them is not
// to wait for the one that does not answer.
const measureTime = 15 * time.Second

// Metrics tells what a sandbox uses. It is no use of the sandbox: a paused one stays
// paused, and one in which nothing has run yet is not started.
func (m *Manager) Metrics(ctx context.Context, id string) (*Metrics, error) {
	b, err := m.settled(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, measureTime, fail(Timeout, "", "sandbox %s does not tell what it uses within %s", id, measureTime))
	defer cancel()
	ctx, stop := b.machine.Cell().Watch(ctx, min(silentTime, measureTime/3)) // and as long again until it is known to be silent
	defer stop()
	b.machine.Refresh()
	// Before the guest is asked: what that takes is not its own use.
	used := &Metrics{Time: time.Now().UTC(), VCPUs: b.manifest.VCPUs, CPU: b.load(time.Now()), Private: b.machine.PrivateBytes()}
	if b.state() == Running && !b.machine.Started() {
		used.MemTotal, used.DiskTotal = int64(b.manifest.MemoryMiB)<<20, int64(diskMiB(b.manifest))<<20
		return used, nil
	}
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	in, err := b.agent.Metrics(ctx)
	if err != nil {
		return nil, b.guestError(err, "measuring")
	}
	used.Time, used.VCPUs = time.Unix(0, in.WallNS).UTC(), in.CPUs
	used.MemTotal, used.MemUsed, used.MemCache = in.MemoryTotal, in.MemoryUsed, in.MemoryCache
	used.DiskTotal, used.DiskUsed = in.DiskTotal, in.DiskUsed
	return used, nil
}

// load returns the use of the processors since somebody looked last, or the fork, in percent of one.
func (b *box) load(now time.Time) float64 {
	busy := b.machine.Counters().Busy
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.usage.at.IsZero() {
		b.usage.at = b.restored
	}
	return b.usage.look(busy, now, b.manifest.VCPUs)
}

// look returns the use since the last look, in percent of one of so many processors.
func (u *usage) look(busy time.Duration, now time.Time, vcpus int) float64 {
	used, long := busy-u.busy, now.Sub(u.at)
	if used >= 0 && (long >= leastUsage || long > 0 && u.busy == 0) {
		*u = usage{busy, now, min(100*float64(used)/float64(long), 100*float64(vcpus))}
	}
	return u.percent
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
