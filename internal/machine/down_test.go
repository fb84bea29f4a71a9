package machine

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLooksAreFew: however often the driver of a guest goes, one look at the guest is to come
// at a time, and they end.
func TestLooksAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		var runs atomic.Bool
		l := looks{look: func() bool {
			n.Add(1)
			return runs.Load()
		}}
		for _, tc := range []struct {
			runs bool
			want int32
		}{{true, 7}, {false, 1}} {
			n.Store(0)
			runs.Store(tc.runs)
			for range 1000 {
				l.begin()
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Minute)
			if got := n.Load(); got != tc.want {
				t.Errorf("guest runs: %t: %d looks, want %d", tc.runs, got, tc.want)
			}
		}
	})
}
