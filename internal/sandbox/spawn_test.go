package sandbox

import (
	"sync"
	"testing"
	"time"
)

// TestCellDiesInTheMiddleOfAFork: a cell may die at any moment, also when the machines in it
// are not known to be anybody's yet. What was answered with a sandbox is then one that has
// ended, with the reason.
func TestCellDiesInTheMiddleOfAFork(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	for i := range 20 {
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond / 2)
			for {
				for _, c := range m.cells.Cells() {
					c.Quit()
				}
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
		results, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 100})
		close(stop)
		wg.Wait()
		for _, c := range m.cells.Cells() { // one may be younger than the last look
			c.Quit()
		}
		if err != nil {
			continue
		}
		for _, r := range results {
			if r.Err != nil {
				continue
			}
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				info, err := m.Sandbox(r.Sandbox.ID)
				if err != nil {
					t.Fatalf("a sandbox that was answered is not there: %v", err)
				}
				if info.State != Running && info.Reason != "" {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("sandbox %s is %s (%q) in a cell that is gone", info.ID, info.State, info.Reason)
				}
			}
			m.Kill(r.Sandbox.ID)
		}
	}
	if left := m.Sandboxes(); len(left) != 0 {
		t.Errorf("%d sandboxes are left, the first as %+v", len(left), left[0])
	}
}
