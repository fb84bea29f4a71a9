package sandbox

import (
	"testing"
	"time"
)

// TestStillness: a guest has come to rest when it sleeps for long, or, where that is not known, when it has executed nothing
// for some looks.
func TestStillness(t *testing.T) {
	type look struct {
		executed uint64
		sleep    time.Duration
	}
	for _, c := range []struct {
		name  string
		looks []look
		rests int // at which look; -1: at none
	}{
		{"sleeps for long at once", []look{{7, time.Hour}}, 0},
		{"wakes up soon, and then not", []look{{1, 300 * time.Millisecond}, {1, 250 * time.Millisecond}, {1, 200 * time.Millisecond}, {1, 150 * time.Millisecond}, {1, 100 * time.Millisecond}, {1, 50 * time.Millisecond}, {2, time.Second}}, 6},
		{"executes", []look{{2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}}, -1},
		{"no one knows of timers", []look{{2, 0}, {3, 0}, {3, 0}, {3, 0}, {3, 0}, {3, 0}, {3, 0}}, 6},
	} {
		s, rests := stillness{executed: 1}, -1
		for i, l := range c.looks {
			if s.rests(l.executed, l.sleep) {
				rests = i
				break
			}
		}
		if rests != c.rests {
			t.Errorf("%s: rests at look %d, want %d", c.name, rests, c.rests)
		}
	}
}
