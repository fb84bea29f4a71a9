//go:build !race

package memory

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// TestAccessesAreInOrder has two goroutines, as a device and a vCPU beside it, write to
// a word each and then read the other's, again and again: at least one sees what the
// other has written. Whoever asks for a notification and then looks once more relies on
// that. It is a race on purpose.
func TestAccessesAreInOrder(t *testing.T) {
	shared, err := page.NewSharedArena()
	if err != nil {
		t.Fatal(err)
	}
	stack := page.NewStack(16)
	defer stack.Release()
	flat, err := page.NewFlat(stack, shared)
	if err != nil {
		t.Fatal(err)
	}
	defer flat.Close()
	flatSpace, err := NewSpace(Slot{Pages: flat})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Space{"overlay": space(t), "flat": flatSpace} {
		t.Run(name, func(t *testing.T) { checkOrder(t, s) })
	}
}

func checkOrder(t *testing.T, s *Space) {
	const rounds = 50_000
	var meet atomic.Int64
	var saw [2][]uint64
	var wg sync.WaitGroup
	for id := range saw {
		mine, other := uint64(0x1000+64*id), uint64(0x1000+64*(1-id))
		saw[id] = make([]uint64, rounds)
		wg.Go(func() {
			for round := range uint64(rounds) {
				for meet.Add(1); meet.Load() < 2*int64(round+1); {
				}
				err := s.PutUint64(mine, round+1)
				v, readErr := s.Uint64(other)
				if err != nil || readErr != nil {
					t.Error(err, readErr)
				}
				saw[id][round] = v
			}
		})
	}
	wg.Wait()
	for round := range uint64(rounds) {
		if saw[0][round] <= round && saw[1][round] <= round {
			t.Fatalf("in round %d neither saw what the other had written", round)
		}
	}
}
