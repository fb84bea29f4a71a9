package virtiotest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
)

// Limited makes a device of the kind under test whose requests a limiter bounds.
type Limited func(testing.TB, mmio.Slot, *rate.Limiter) (Device, error)

const (
	limitedRequests = 12
	limitedAtOnce   = 2 // pass before the limiter holds back
)

// limited is a device with requests that were made all at once.
type limited struct {
	Subject
	*Driver
	q       *Queue
	limiter *rate.Limiter // of the next device to be made
	heads   []uint16
	done    []uint16
}

// size returns the bytes of a request.
func (s Subject) size() (n int) {
	for _, b := range s.Request {
		n += len(b.Data) + b.Size
	}
	return n
}

// limiter returns one that passes limitedAtOnce requests at once, and then one each eighth
// of a second.
func (s Subject) limiter() *rate.Limiter { return rate.NewLimiter(int64(4 * limitedAtOnce * s.size())) }

// newLimited makes a device with requests that were made all at once.
func (s Subject) newLimited(t *testing.T, open Limited) *limited {
	t.Helper()
	l := &limited{Subject: s, limiter: s.limiter()}
	l.Driver = NewDriver(t, func(slot mmio.Slot) (Device, error) { return open(t, slot, l.limiter) })
	l.Start(Features, 64)
	l.q = l.Queues[s.Queue]
	for range limitedRequests {
		l.heads = append(l.heads, l.q.Add(s.Request...))
	}
	l.q.Kick()
	l.take()
	if len(l.done) != limitedAtOnce {
		t.Fatalf("%d requests of %d were served at once, want %d", len(l.done), limitedRequests, limitedAtOnce)
	}
	return l
}

// take notes what has been served, and in which order.
func (l *limited) take() {
	l.TB.Helper()
	l.RunPosted()
	for _, u := range l.q.Take() {
		l.done = append(l.done, u.Head)
	}
	for i, head := range l.done {
		if i >= len(l.heads) || head != l.heads[i] {
			l.TB.Fatalf("served %v of %v", l.done, l.heads)
		}
	}
	if l.Broken() {
		l.TB.Fatal("the device is broken")
	}
}

// pass lets time pass, in which nobody kicks, and returns how often the device asked to
// be called.
func (l *limited) pass(d time.Duration) (calls int) {
	l.TB.Helper()
	for end := time.After(d); ; {
		select {
		case <-l.Posted():
			calls++
			l.take()
		case <-end:
			return calls
		}
	}
}

// RunLimited is the suite of devices whose requests a limiter can hold back.
func RunLimited(t *testing.T, s Subject, open Limited) {
	for name, test := range map[string]func(*testing.T, *limited){
		"requests are served in time":    servedInTime,
		"saved while held back":          savedWhileHeldBack,
		"saved again and again":          savedAgainAndAgain,
		"reset while held back":          resetWhileHeldBack,
		"the machine ends meanwhile":     endsMeanwhile,
		"whoever is slower is not bound": slowerIsNotBound,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := s.newLimited(t, open)
				test(t, l)
				l.limiter.Close()
			})
		})
	}
}

func servedInTime(t *testing.T, l *limited) {
	// The guest's kicks change nothing, and nothing is to be done meanwhile.
	for range 5 {
		l.q.Kick()
		if n := l.RunPosted(); n != 0 {
			t.Errorf("%d functions are posted while there is nothing to do", n)
		}
	}
	l.Interrupt()
	calls := l.pass(500 * time.Millisecond)
	if n := len(l.done) - limitedAtOnce; n < 3 || n > 5 {
		t.Errorf("%d requests in half a second, want 4", n)
	}
	if l.Interrupt()&InterruptQueue == 0 {
		t.Error("no interrupt for what was served late")
	}
	calls += l.pass(time.Second)
	if len(l.done) != limitedRequests || calls > 2*limitedRequests {
		t.Errorf("%d requests of %d were served, in %d calls", len(l.done), limitedRequests, calls)
	}
}

// again replaces the device by one that is made of its state.
func (l *limited) again(next *rate.Limiter) {
	l.TB.Helper()
	l.limiter.Close()
	l.limiter = next
	l.Restore(l.State())
}

func savedWhileHeldBack(t *testing.T, l *limited) {
	l.again(nil)
	if l.take(); len(l.done) != limitedRequests {
		t.Errorf("%d requests of %d were served after the load", len(l.done), limitedRequests)
	}
}

func savedAgainAndAgain(t *testing.T, l *limited) {
	for range 3 {
		l.again(l.Subject.limiter())
		l.take()
		l.pass(100 * time.Millisecond)
	}
	if n := len(l.done); n == limitedRequests || n == limitedAtOnce {
		t.Errorf("%d requests are served, which says little", n)
	}
	l.again(nil)
	if l.take(); len(l.done) != limitedRequests {
		t.Errorf("%d requests of %d were served in the end", len(l.done), limitedRequests)
	}
}

func resetWhileHeldBack(t *testing.T, l *limited) {
	l.Set(RegStatus, 0)
	l.done, l.heads = nil, nil
	l.pass(2 * time.Second)
	l.works(l.Driver)
}

func endsMeanwhile(t *testing.T, l *limited) {
	l.limiter.Close()
	if calls := l.pass(time.Hour); calls != 0 {
		t.Errorf("the device asked %d times to be called, of a machine that has ended", calls)
	}
}

func slowerIsNotBound(t *testing.T, l *limited) {
	l.pass(2 * time.Second)
	for range 20 {
		l.pass(130 * time.Millisecond)
		l.q.Do(l.Request...)
	}
}
