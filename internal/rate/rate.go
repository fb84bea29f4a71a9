// Package rate bounds how much passes in a time.
//
// A Bucket is the arithmetic, for whoever has a clock and a lock of its own. A Limiter
// is a bucket for bytes that devices have in common; each has a Gate to it, looks
// whether that is open before it takes a request, and tells of the request afterwards.
// Nobody ever waits: a device that finds its gate closed leaves its requests where
// they are and is called when it opens.
//
// One that had to wait goes before the others when there is something to be had again,
// so that who asks most often does not get all.
//
// Requests are never cut up, so a bucket goes into debt for one that is larger than
// what is there, and the next waits until that is paid.
//
// Lock order: Limiter.mu is taken with a device's lock held, and holds while devices
// are woken, which must take no lock of theirs.
package rate

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// Bucket holds tokens, which flow in at a steady rate up to the bucket's size. Times
// are of any clock that never goes back.
type Bucket struct {
	perSecond, size float64
	level           float64 // at the time at; negative is debt
	at              time.Duration
}

// NewBucket returns a full bucket.
func NewBucket(perSecond, size float64, now time.Duration) Bucket {
	return Bucket{perSecond, size, size, now}
}

// Level returns how many tokens there are; fewer than none is debt.
func (b *Bucket) Level(now time.Duration) float64 {
	if d := now - b.at; d > 0 {
		b.level = min(b.size, b.level+b.perSecond*d.Seconds())
		b.at = now
	}
	return b.level
}

// Take takes tokens, whether they are there or not.
func (b *Bucket) Take(now time.Duration, tokens float64) { b.level = b.Level(now) - tokens }

// maxWait bounds the answer of Until, which has to fit into a Duration. Who is still
// too early then asks again.
const maxWait = time.Hour

// Until returns how long it takes until there are as many tokens as wanted, or as fit.
func (b *Bucket) Until(now time.Duration, wanted float64) time.Duration {
	missing := min(wanted, b.size) - b.Level(now)
	if missing <= 0 {
		return 0
	}
	wait := math.Ceil(missing / b.perSecond * float64(time.Second))
	return time.Duration(min(wait, float64(maxWait)))
}

// What a Limiter lets pass at once after a rest, and how much there must be for a
// closed gate to open, as times at the full rate.
const (
	burst  = time.Second / 4
	refill = 20 * time.Millisecond
)

// Limiter bounds bytes per second. A nil Limiter bounds nothing.
type Limiter struct {
	perSecond float64 // immutable
	began     time.Time

	mu      sync.Mutex
	bucket  Bucket  // guarded by mu
	waiting []*Gate // by tickets; guarded by mu
	tickets uint64  // drawn; guarded by mu
	// first, until it has passed something or some time is over, is the only one that
	// may: it has waited longest. Guarded by mu.
	first      *Gate
	firstUntil time.Duration
	timer      *time.Timer // for those that wait; guarded by mu
	closed     bool        // guarded by mu
}

// NewLimiter returns a limiter, or nil if there is to be no limit, which zero says.
func NewLimiter(bytesPerSecond int64) *Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	rate := float64(bytesPerSecond)
	return &Limiter{perSecond: rate, began: time.Now(), bucket: NewBucket(rate, rate*burst.Seconds(), 0)}
}

// Close has gates wake nobody any more. When it returns, none is about to.
func (l *Limiter) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// Gate returns a device's way through the limiter. wake is called, on a goroutine of
// its own, when the gate opens after the device has found it closed; it must return at
// once.
func (l *Limiter) Gate(wake func()) *Gate {
	if l == nil {
		return nil
	}
	return &Gate{limiter: l, wake: wake}
}

// Gate is a device's way through a limiter. A nil Gate is always open.
type Gate struct {
	limiter *Limiter // immutable
	wake    func()   // immutable
	waiting bool     // guarded by limiter.mu
	// ticket tells since when it has waited to pass anything at all; zero if it did not
	// have to since it passed something last. Guarded by limiter.mu.
	ticket uint64
}

// Open tells whether a request may pass now. If not, the gate wakes the device later.
func (g *Gate) Open() bool { return g == nil || g.limiter.open(g) }

// Pass accounts for a request of n bytes, which has passed.
func (g *Gate) Pass(n int) {
	if g == nil {
		return
	}
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket.Take(l.now(), float64(n))
	if g.ticket = 0; l.first == g {
		l.first = nil
	}
}

func (l *Limiter) now() time.Duration { return time.Since(l.began) }

func (l *Limiter) open(g *Gate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.bucket.Level(now) > 0 && (l.first == nil || l.first == g || now >= l.firstUntil) {
		return true
	}
	if !g.waiting && !l.closed {
		if l.line(g); len(l.waiting) == 1 {
			l.schedule(now)
		}
	}
	return false
}

// line puts g among those that wait. One that was woken and found that another had left
// nothing goes before that one. The caller holds l.mu.
func (l *Limiter) line(g *Gate) {
	if g.ticket == 0 {
		l.tickets++
		g.ticket = l.tickets
	}
	i, _ := slices.BinarySearchFunc(l.waiting, g.ticket, func(w *Gate, t uint64) int { return cmp.Compare(w.ticket, t) })
	l.waiting = slices.Insert(l.waiting, i, g)
	g.waiting = true
}

// schedule sets the timer for those that wait. The caller holds l.mu.
func (l *Limiter) schedule(now time.Duration) {
	wait := l.bucket.Until(now, l.perSecond*refill.Seconds())
	if l.first != nil {
		wait = max(wait, l.firstUntil-now)
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, l.ring)
	} else {
		l.timer.Reset(wait)
	}
}

// ring wakes those that wait, in order.
func (l *Limiter) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.bucket.Level(now) <= 0 && !l.closed { // maxWait was too short
		l.schedule(now)
		return
	}
	gates := slices.Clone(l.waiting)
	l.waiting = l.waiting[:0]
	if len(gates) > 0 {
		l.first, l.firstUntil = gates[0], now+refill
	}
	for _, g := range gates {
		if g.waiting = false; !l.closed {
			g.wake()
		}
	}
}
