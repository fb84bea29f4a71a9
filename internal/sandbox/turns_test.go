package sandbox

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
)

// crowd is an engine that notes how many machines it makes at the same time at most.
type crowd struct {
	engine.Engine
	now, most *atomic.Int64
}

func (c crowd) NewVM(config engine.Config) (engine.VM, error) {
	now := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	time.Sleep(10 * time.Millisecond) // for the others to come
	return c.Engine.NewVM(config)
}

// TestMachinesAreMadeInTurn: requests that come at once do not begin with more machines than there are
// processors, where each is in a process of its own.
func TestMachinesAreMadeInTurn(t *testing.T) {
	var now, most atomic.Int64
	kind := softEngine
	kind.Each = true
	m, err := Open(context.Background(), Options{
		Home: t.TempDir(), Engine: kind, Log: slog.New(slog.DiscardHandler),
		Cells: &cell.Within{NewEngine: func() engine.Engine { return crowd{soft.New(1), &now, &most} }},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	bare(t, m, "base", "")
	var requests sync.WaitGroup
	for range 4 * runtime.NumCPU() {
		requests.Go(func() {
			if made, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 1}); err != nil || made[0].Err != nil {
				t.Errorf("forking: %v, %v", made, err)
			}
		})
	}
	requests.Wait()
	if got := most.Load(); got > int64(runtime.NumCPU()) {
		t.Errorf("%d machines were being made at once, on %d processors", got, runtime.NumCPU())
	}
}

// A caller who leaves does not wait for a turn.
func TestNobodyWaitsForATurnWhoHasLeft(t *testing.T) {
	m := openApart(t, true)
	bare(t, m, "base", "")
	for range cap(m.turns) {
		m.turns <- struct{}{}
	}
	ctx, leave := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, leave)
	if _, err := m.Fork(ctx, ForkSpec{Tag: "base", N: 1}); err == nil {
		t.Error("a machine was made out of turn")
	}
}
