package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// refreshTime bounds a refresh; a guest that has not answered by then is lost, unless its cell does not answer.
const refreshTime = 60 * time.Second

// box is a sandbox. Its machine exists from the fork on but is dormant: no
// instruction runs and guest time stands still until activate, which happens
// on first contact, or at once for a snapshot that holds user processes.
//
// Lock order: box.noting, box.mu; the latter is a leaf.
type box struct {
	terms
	id        string
	tag       string // of its snapshot, or of that which a temporary one was branched from
	base      string // tag that its user knows it to be of; another one than tag if that is its own
	first     string // tag when it was forked: another one if it was rolled back since
	source    string // id of the sandbox that its snapshot was branched from, if any
	names     names
	manifest  *snapshot.Manifest
	engine    string
	created   time.Time
	restored  time.Time // when its machine was made: after created if it was rolled back or resumed
	workspace string    // that it is, if any
	pausedAt  time.Time // when its state was kept that a resume goes back to; zero: there is none
	fleeting  bool      // a later daemon ends it; guarded by mu
	machine   *cell.VM
	agent     *agent.Client
	notes     *notes        // shared
	turn      chan struct{} // holds a token while nobody branches, suspends or replaces it
	wakeOnce  sync.Once
	called    chan struct{}   // closed when the guest has been asked to refresh itself
	awake     chan struct{}   // closed when activation has ended
	wakeErr   error           // written before awake is closed
	doomed    context.Context // ends when activation has failed
	doom      func()          // ends it
	closeOnce sync.Once
	closed    chan struct{}

	noting sync.Mutex // held while its cell is told what it is

	mu      sync.Mutex
	life                       // guarded by mu
	idling  idling             // guarded by mu
	snap    *snapshot.Snapshot // that it was restored from; nil when it is closed; guarded by mu
	timer   *time.Timer        // of the lifetimes; guarded by mu
	usage   usage              // guarded by mu
	leaving chan struct{}      // see leave; guarded by mu
	over    bool               // it is closed; guarded by mu
	reason  string             // why it ended, if not through the machine; guarded by mu
	relic   State              // that it ended in, if that is only known from the journal; else empty
	arrival *arrival           // its cell is to tell of it, and only the journal has yet; else nil
}

// activate makes the child itself: it starts the machine and has the guest's
// agent refresh everything that must not be shared with siblings. All callers
// wait for the one refresh; what it could not do is every caller's error.
func (b *box) activate(ctx context.Context) error {
	b.wake()
	if b.isAwake() {
		return b.wakeErr
	}
	ctx, cancel := b.watchWaking(ctx)
	defer cancel()
	return b.await(ctx, b.awake)
}

// wake begins to activate the child.
func (b *box) wake() {
	b.wakeOnce.Do(func() {
		go func() {
			b.wakeErr = b.refresh()
			close(b.awake)
			if b.wakeErr != nil {
				b.doom()
			}
			b.notes.soon(b)
		}()
	})
}

// await waits for a step of activation. The error is that of the activation, or why ctx has ended.
func (b *box) await(ctx context.Context, step <-chan struct{}) error {
	select {
	case <-step:
	case <-ctx.Done():
	}
	if b.isAwake() {
		return b.wakeErr
	}
	if err := context.Cause(ctx); err != nil {
		return wrap(err, "waiting for sandbox %s to start", b.id)
	}
	return nil
}

// silentTime is after how long of silence something is given up that has no time limit of its own;
// a variable for tests.
var silentTime = cell.AnswerTime

// watch returns a context for something that takes the guest a moment: it ends if the sandbox's cell
// turns out not to answer. Once stop was called that may take as long as it likes.
func (b *box) watch(ctx context.Context) (watched context.Context, stop func()) {
	return b.machine.Cell().Watch(ctx, silentTime)
}

// watchWaking is watch for something that is watched only until the child is awake. It ends with cancel.
func (b *box) watchWaking(ctx context.Context) (watched context.Context, cancel func()) {
	return b.machine.Cell().WatchUntil(ctx, silentTime, b.awake)
}

// stuckTime is how long a guest may take to end something after its time limit, before nobody waits for
// that any more: longer than for another interpreter in the place of one that is not to be interrupted.
// Tests make it shorter.
var stuckTime = 2 * time.Minute

// within returns a context for something that the guest ends at a time limit by itself. If the
// cell does not answer, the context ends at the limit, and if the guest does not, stuckTime later.
// Without a limit that is waited for.
func (b *box) within(ctx context.Context, limit time.Duration) (watched context.Context, stop func()) {
	if limit == 0 {
		return ctx, func() {}
	}
	stuck := fail(Timeout, fmt.Sprintf("`forkd kill %s` gives it up", b.id), "sandbox %s does not answer, %s after a time limit of %s", b.id, stuckTime, limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit+stuckTime, stuck)
	ctx, end := b.machine.Cell().Watch(ctx, limit)
	return ctx, func() {
		end()
		cancel()
	}
}

func (b *box) refresh() error {
	ctx, cancel := b.machine.Cell().Timeout(context.Background(), refreshTime)
	defer cancel()
	again := b.machine.Started() // and an earlier daemon has not come to an end with it
	if again {
		if err := b.machine.Start(); err != nil {
			return b.dead()
		}
	} else {
		b.machine.StartByOpen()
	}
	id := b.identity()
	finish, err := b.agent.BeginRefresh(ctx, &id)
	if err == nil {
		if !again {
			close(b.called)
		}
		err = finish()
	}
	if err == nil && again {
		_ = b.interruptFormer(ctx) // before anything is evaluated, which would be what it hits
		close(b.called)
	}
	if err != nil {
		b.mu.Lock()
		b.reason = "the guest could not be made itself after the fork: " + b.refreshFailure(err)
		b.mu.Unlock()
		b.machine.Pause()
		return b.dead()
	}
	return nil
}

// patient reports whether a refresh may count towards a time limit.
func patient(timeout time.Duration) bool { return timeout == 0 || timeout >= time.Second }

// atOnce does something in the warm runtime of a child that need not be awake. With
// together, it and the refresh ahead of it are sent together, so that the guest wakes
// up once for both: its runtime stands still until it is refreshed.
func atOnce[R any](ctx context.Context, b *box, together bool, do func(context.Context) (*R, error)) (*R, error) {
	if b.isAwake() || !together {
		if err := b.activate(ctx); err != nil {
			return nil, err
		}
		return do(ctx)
	}
	b.wake()
	both, cancel := b.watchWaking(ctx)
	defer cancel()
	stop := context.AfterFunc(b.doomed, cancel)
	defer stop()
	if err := b.await(both, b.called); err != nil {
		return nil, err
	}
	result, err := do(both)
	if e := b.await(both, b.awake); e != nil {
		return nil, e
	}
	return result, err
}

func (b *box) isAwake() bool {
	select {
	case <-b.awake:
		return true
	default:
		return false
	}
}

// identity is what makes this child different from its siblings.
func (b *box) identity() wire.Refresh {
	r := wire.Refresh{
		Generation: uint64(b.restored.UnixNano()),
		MachineID:  b.names.MachineID,
		BootID:     b.names.BootID,
		Hostname:   b.id,
	}
	rand.Read(r.Entropy[:])
	r.WallNS = b.machine.ClockZero().UnixNano()
	r.Limits = b.guestLimits()
	return r
}

// ready returns once the child may be used.
func (b *box) ready(ctx context.Context) error {
	if b.state() != Running {
		return b.dead()
	}
	return b.activate(ctx)
}

// dead is the error for a guest that cannot be reached any more. How the
// connection to it broke is nobody's concern; why it ended is.
func (b *box) dead() error {
	reason := b.endReason()
	switch reason {
	case reasonRolled:
		return rolledBack(b.id)
	case reasonPaused:
		return pausedError(b.id)
	}
	return fail(SandboxDead, b.remedy(), "sandbox %s has ended: %s", b.id, b.fate())
}

// kept reports whether the state of a pause is there that a resume goes back to.
func (b *box) kept() bool { return !b.pausedAt.IsZero() }

// fate tells people why the sandbox has ended, and what of it is left.
func (b *box) fate() string {
	if !b.kept() {
		return b.endReason()
	}
	return fmt.Sprintf("%s; it can be resumed as it was paused at %s, without what it has done since", b.endReason(), b.pausedAt.UTC().Format(time.RFC3339))
}

// remedy is what there is to do about a sandbox that has ended.
func (b *box) remedy() string {
	if b.kept() {
		return fmt.Sprintf("`forkd resume %s` does that", b.id)
	}
	select {
	case <-b.machine.Done():
		if b.outgrew(b.machine.Ending()) {
			return "fork another one with a larger memory limit, or none"
		}
	default:
	}
	return "fork another one"
}

// giveUp ends the sandbox for a reason of the host's.
func (b *box) giveUp(reason string) {
	b.blame(reason)
	b.close()
}

// blame notes why the sandbox ends, unless that is known.
func (b *box) blame(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason == "" {
		b.reason = reason
	}
}

func (b *box) state() State {
	if b.relic != "" {
		return b.relic
	}
	if b.lost() != "" {
		return Crashed
	}
	select {
	case <-b.machine.Done():
		if b.machine.Ending().Err != nil {
			return Crashed
		}
		return Exited
	default:
		return Running
	}
}

func (b *box) lost() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reason
}

func (b *box) endReason() string {
	if r := b.lost(); r != "" {
		return r
	}
	select {
	case <-b.machine.Done():
	default:
		return ""
	}
	ending := b.machine.Ending()
	if b.outgrew(ending) {
		return fmt.Sprintf("it needed more than its memory limit of %d MiB", b.limits.MemoryMiB)
	}
	return ending.String()
}

// outgrew reports whether its memory limit has ended the sandbox.
func (b *box) outgrew(e machine.Ending) bool {
	return errors.Is(e.Err, page.ErrQuota) && b.limits.MemoryMiB > 0
}

func (b *box) info() Info {
	b.mu.Lock()
	life := b.life
	b.mu.Unlock()
	state, reason, pausedAt := b.state(), b.fate(), b.pausedAt
	if state == Running {
		reason, pausedAt = b.silence(), time.Time{}
	}
	return Info{
		ID:           b.id,
		SnapshotTag:  b.base,
		Engine:       b.engine,
		State:        state,
		Reason:       reason,
		CreatedAt:    b.created,
		ExpiresAt:    life.expires,
		Limits:       b.limits,
		PID:          b.machine.Cell().PID,
		PrivateKiB:   b.machine.PrivateBytes() >> 10,
		Translated:   b.machine.Counters().Translated,
		BranchedFrom: b.source,
		Workspace:    b.workspace,
		Metadata:     b.metadata,
		OnTimeout:    b.onTimeout,
		AutoResume:   b.autoResume,
		PausedAt:     pausedAt,
		Front:        life.front,
		Untold:       b.arrival != nil,
		VCPUs:        b.manifest.VCPUs,
		MemoryMiB:    b.manifest.MemoryMiB,
		DiskMiB:      diskMiB(b.manifest),
	}
}

// silence tells why nobody hears of a sandbox that may be well; "" if that is not so.
func (b *box) silence() string {
	switch {
	case b.machine.Cell().Silent():
		return cell.ErrSilent.Error()
	case b.arrival != nil:
		return "the process that it lives in has not told of it yet"
	}
	return ""
}

// close ends the machine and frees it. It may be called more than once.
func (b *box) close() {
	b.closeOnce.Do(func() {
		b.mu.Lock()
		if b.timer != nil {
			b.timer.Stop()
		}
		b.over = true
		snap := b.snap
		b.snap = nil
		b.mu.Unlock()
		close(b.closed)
		b.machine.Close() // first: there is nobody who has to hear of the connections' end
		b.agent.Close()
		if snap != nil {
			snap.Release()
		}
	})
}

// origin returns a reference to the snapshot that the sandbox was restored from,
// or nil if the sandbox has been closed.
func (b *box) origin() *snapshot.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.snap == nil {
		return nil
	}
	return b.snap.Retain()
}

// exclusive waits for the turn to do something to the machine as a whole. The
// caller calls done.
func (b *box) exclusive(ctx context.Context) (done func(), err error) {
	select {
	case <-b.turn:
		return func() { b.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, wrap(context.Cause(ctx), "waiting for another operation on sandbox %s", b.id)
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// newUUID returns a random UUID (RFC 9562 version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	s := hex.EncodeToString(b[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
