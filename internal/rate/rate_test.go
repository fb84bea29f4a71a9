package rate

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestBucket(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		take  []float64 // one each 10 ms, from 10 ms on
		level float64   // right after that
		until time.Duration
	}{
		"begins full":             {nil, 50, 0},
		"holds no more than fits": {[]float64{0, 0, 0}, 50, 0},
		"gives what it has":       {[]float64{50}, 0, 20 * ms},
		"fills up":                {[]float64{50, 0, 0}, 20, 0},
		"goes into debt":          {[]float64{150}, -100, 120 * ms},
		"pays debt first":         {[]float64{150, 0, 0}, -80, 100 * ms},
		"takes while in debt":     {[]float64{150, 10}, -100, 120 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBucket(1000, 50, 0) // ten in 10 ms
			now := time.Duration(0)
			for _, n := range c.take {
				now += 10 * ms
				b.Take(now, n)
			}
			if got := b.Level(now); math.Abs(got-c.level) > 1e-9 {
				t.Errorf("level %v, want %v", got, c.level)
			}
			got := b.Until(now, 20)
			if got != c.until {
				t.Errorf("20 are there in %v, want %v", got, c.until)
			}
			if b.Level(now+got) < 20 || b.Level(now-time.Second) < 20 {
				t.Error("they are not, or time went back")
			}
		})
	}
}

// The answer of Until is one that somebody can sleep for, whatever the figures.
func TestUntilIsATime(t *testing.T) {
	for _, perSecond := range []float64{1e-300, 1e-6, 1, 1e9, 1e300} {
		for _, debt := range []float64{0, 1, 1e6, 1e300} {
			b := NewBucket(perSecond, perSecond, 0)
			b.Take(0, perSecond+debt)
			if got := b.Until(0, perSecond/2); got <= 0 || got > maxWait {
				t.Errorf("rate %g, debt %g: %v", perSecond, debt, got)
			}
		}
	}
	b := NewBucket(10, 5, 0)
	b.Take(0, 5)
	if got := b.Until(0, 100); got != time.Second/2 {
		t.Errorf("more than ever fits: %v", got)
	}
}

// reader passes through a gate as a device does: all that it can, and again when woken.
type reader struct {
	gate   *Gate
	size   int
	passed int
	woken  atomic.Int64
}

func (r *reader) serve(most int) {
	for n := 0; n < most && r.gate.Open(); n++ {
		r.gate.Pass(r.size)
		r.passed += r.size
	}
}

func TestLimiter(t *testing.T) {
	for name, sizes := range map[string][]int{
		"one device":          {512},
		"two devices":         {4096, 4096},
		"large requests":      {8 << 20},
		"large ones and less": {1 << 20, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const perSecond, seconds = 1 << 20, 100
				l := NewLimiter(perSecond)
				var readers []*reader
				wakes := make(chan *reader, 10)
				for _, size := range sizes {
					r := &reader{size: size}
					r.gate = l.Gate(func() { r.woken.Add(1); wakes <- r })
					readers = append(readers, r)
					wakes <- r
				}
				end := time.After(seconds * time.Second)
				for done := false; !done; {
					select {
					case r := <-wakes:
						r.serve(math.MaxInt)
						r.serve(math.MaxInt) // the guest kicks again: nothing
					case <-end:
						done = true
					}
				}
				total, most := 0, 0
				for _, r := range readers {
					total, most = total+r.passed, max(most, r.size)
					if r.passed < perSecond*seconds/(2*len(sizes))/(most/r.size) || r.woken.Load() > 60*seconds {
						t.Errorf("a device passed %d bytes, woken %d times", r.passed, r.woken.Load())
					}
				}
				if want := perSecond * seconds; math.Abs(float64(total-want)) > perSecond/2+float64(most) {
					t.Errorf("%d bytes passed, want %d", total, want)
				}
				l.Close()
			})
		})
	}
}

// After a rest a moment's worth passes at once.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1000)
		r := &reader{size: 1, gate: l.Gate(func() {})}
		for range 2 {
			time.Sleep(time.Hour)
			before := r.passed
			if r.serve(1000); r.passed-before != 250 {
				t.Errorf("%d of 1000 passed at once, want 250", r.passed-before)
			}
		}
		l.Close()
	})
}

func TestNoLimit(t *testing.T) {
	l := NewLimiter(0)
	g := l.Gate(func() { t.Error("woken") })
	if g.Pass(1 << 40); l != nil || !g.Open() {
		t.Error("a limit where there is none")
	}
	l.Close()
}

// After Close no device is woken any more, not even by a timer that has gone off.
func TestClose(t *testing.T) {
	for range 200 {
		l := NewLimiter(1 << 30)
		var closed atomic.Bool
		g := l.Gate(func() {
			if closed.Load() {
				t.Error("woken after the end")
			}
		})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for range 200 {
					g.Pass(rand.IntN(1 << 26))
					g.Open()
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
		l.Close()
		closed.Store(true)
		wg.Wait()
		g.Pass(1 << 30)
		g.Open()
	}
}

func BenchmarkGate(b *testing.B) {
	g := NewLimiter(1 << 40).Gate(func() {})
	for b.Loop() {
		if g.Open() {
			g.Pass(4096)
		}
	}
}
