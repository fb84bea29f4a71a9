package conn

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestBuffer compares a buffer with a slice.
func TestBuffer(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var b Buffer
	var want []byte
	for i := range 2000 {
		switch p := make([]byte, random.IntN(10_000)); random.IntN(5) {
		case 0, 1:
			for j := range p {
				p[j] = byte(random.Uint32())
			}
			b.Write(p)
			want = append(want, p...)
		case 2, 3:
			n := b.Read(p)
			if n != min(len(p), len(want)) || !bytes.Equal(p[:n], want[:n]) {
				t.Fatalf("step %d: %d bytes of %d", i, n, len(want))
			}
			want = want[n:]
		default:
			if random.IntN(10) == 0 {
				b.Drop()
				want = nil
			}
		}
		if b.Len() != len(want) {
			t.Fatalf("step %d: %d bytes instead of %d", i, b.Len(), len(want))
		}
	}
	b.Drop()
	if b.first != nil || b.last != nil {
		t.Error("it holds memory")
	}
}

func TestDeadline(t *testing.T) {
	var mu sync.Mutex
	cond := sync.NewCond(&mu)
	var d Deadline
	mu.Lock()
	defer mu.Unlock()
	if d.Set(time.Now().Add(-time.Second), cond); !d.Passed() {
		t.Error("one in the past has not passed")
	}
	if d.Set(time.Time{}, cond); d.Passed() {
		t.Error("none has passed")
	}
	d.Set(time.Now().Add(time.Hour), cond)
	for d.Set(time.Now().Add(time.Millisecond), cond); !d.Passed(); {
		cond.Wait()
	}
	d.Set(time.Now().Add(time.Hour), cond)
	if d.Stop(); d.Passed() || d.timer != nil {
		t.Error("stopped, and it goes on")
	}
}
