package inside

import (
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// begin makes n machines that wait to be started, each with a stream, and tells on started
// when they are.
func begin(t *testing.T, n int, fail error) (a *beginners, all []*stream, started chan int) {
	t.Helper()
	fds, err := net.Listen("unix", "@"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer fds.Close()
	c, err := net.Dial("unix", "@"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	link, err := wire.NewLink(c.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	streams := &streams{link: link, open: make(map[uint32]*stream)}
	a, started = new(beginners), make(chan int, n)
	var waiting []*beginner
	for i := range n {
		v := new(vm)
		b := &beginner{of: a, vm: v, run: func() error {
			started <- i
			return fail
		}, at: func() bool { return false }}
		v.first.Store(b)
		st := &stream{of: streams, number: uint32(i), vm: v}
		streams.open[st.number] = st
		b.asked(st)
		waiting, all = append(waiting, b), append(all, st)
	}
	for _, b := range waiting {
		b.add()
	}
	return a, all, started
}

// TestFirstStepsTakeTurns: no more machines take their first steps than a few for each
// processor, in order, and who has answered makes room.
func TestFirstStepsTakeTurns(t *testing.T) {
	atOnce := together * runtime.GOMAXPROCS(0)
	a, all, started := begin(t, 3*atOnce, nil)
	most := 0
	for range all {
		i := <-started
		a.mu.Lock()
		most = max(most, a.busy)
		a.mu.Unlock()
		all[i].answered()
		if all[i].vm.first.Load() != nil {
			t.Error("it is at its first steps still")
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if most > atOnce || a.busy != 0 || len(a.waiting) > 0 {
		t.Errorf("up to %d at once; %d at the end, %d wait", most, a.busy, len(a.waiting))
	}
}

// TestStartedInPairs: one that has answered does not have another start alone, beside who is
// half-way, unless it is the last.
func TestStartedInPairs(t *testing.T) {
	atOnce := together * runtime.GOMAXPROCS(0)
	a, all, started := begin(t, atOnce+together+1, nil)
	wait := func(n int) (order []int) {
		for range n {
			order = append(order, <-started)
		}
		return order
	}
	waiting := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.waiting)
	}
	wait(atOnce)
	for i := range together {
		if n := waiting(); n != together+1 {
			t.Fatalf("%d wait after %d have answered", n, i)
		}
		all[i].answered()
	}
	wait(together)
	if n := waiting(); n != 1 {
		t.Fatalf("%d wait after the next were started", n)
	}
	all[together].answered()
	wait(1)
}

// TestSilentMachinesHoldNobodyUp: others wait a moment for a machine that says nothing,
// and not at all for one that is closed or cannot be started.
func TestSilentMachinesHoldNobodyUp(t *testing.T) {
	atOnce := together * runtime.GOMAXPROCS(0)
	a, all, started := begin(t, 4*atOnce, nil)
	all[len(all)-1].vm.first.Load().end() // closed before it was started
	for range len(all) - 1 {
		<-started
	}
	for done := false; !done; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		done = a.busy == 0
		a.mu.Unlock()
	}
	select {
	case i := <-started:
		t.Errorf("machine %d was closed, and is started", i)
	default:
	}
}

// TestSlowMachinesAreWaitedFor: others wait for a machine as long as it is at its first steps, but not for ever.
func TestSlowMachinesAreWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct{ slow, want time.Duration }{
		"a little slow": {4*firstTime + firstTime/2, 5 * firstTime},
		"for ever":      {time.Hour, firstLooks * firstTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, began := new(beginners), time.Now()
				var last atomic.Int64
				for range 2 * together * runtime.GOMAXPROCS(0) {
					b := &beginner{of: a, vm: new(vm), at: func() bool { return time.Since(began) < tc.slow }, run: func() error {
						last.Store(int64(time.Since(began)))
						return nil
					}}
					b.vm.first.Store(b)
					b.add()
				}
				time.Sleep(2 * time.Hour)
				if last := time.Duration(last.Load()); last != tc.want {
					t.Errorf("the last one was started after %v, not %v", last, tc.want)
				}
			})
		})
	}
}

// TestEndsBeforeItsTurn: a machine that is closed before it waits for its turn, or when it
// has it and was not started yet, is not started and holds nobody up.
func TestEndsBeforeItsTurn(t *testing.T) {
	a := new(beginners)
	var late []*beginner
	for range runtime.GOMAXPROCS(0) {
		b := &beginner{of: a, vm: new(vm), run: func() error {
			t.Error("it is started")
			return nil
		}}
		b.vm.first.Store(b)
		b.vm.begun()
		b.add()
		late = append(late, b)
	}
	a.mu.Lock()
	if a.busy != 0 || len(a.waiting) > 0 {
		t.Errorf("%d take their first steps, %d wait", a.busy, len(a.waiting))
	}
	a.mu.Unlock()
	for _, b := range late {
		b.start() // as it is when its turn has just come
	}
}

// TestBegunWaitsForTheStart: who is told that a machine has begun finds it started, if it is
// to be at all.
func TestBegunWaitsForTheStart(t *testing.T) {
	entered, done := make(chan struct{}), false
	b := &beginner{of: new(beginners), vm: new(vm), run: func() error {
		close(entered)
		time.Sleep(10 * time.Millisecond)
		done = true
		return nil
	}}
	b.vm.first.Store(b)
	b.add()
	<-entered
	if b.vm.begun(); !done {
		t.Error("it is started afterwards")
	}
}

// TestStartFails: who waits for an answer of a machine that cannot be started hears that.
func TestStartFails(t *testing.T) {
	_, all, started := begin(t, 1, errors.New("it cannot be"))
	st := all[0]
	<-started
	for st.vm.first.Load() != nil {
		time.Sleep(time.Millisecond)
	}
	st.of.mu.Lock()
	defer st.of.mu.Unlock()
	if len(st.of.open) != 0 {
		t.Error("its stream is open")
	}
}
