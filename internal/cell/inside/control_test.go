package inside

import (
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// TestBusyMachineHoldsUpNoOther: while something is done to a machine as a whole, who asks
// something of it waits for that, and nobody else does.
func TestBusyMachineHoldsUpNoOther(t *testing.T) {
	s := newServer(t)
	v := addMachine(t, s, 1)
	d := connect(t, s)
	for _, op := range []wire.Op{wire.OpStart, wire.OpPause, wire.OpCut, wire.OpPin, wire.OpClose} {
		busy, done := make(chan struct{}), make(chan struct{})
		go v.machine.Unseal(func() bool {
			close(busy)
			<-done
			return true
		})
		<-busy
		body := map[wire.Op]any{wire.OpCut: wire.Cut{VM: 1, Source: 7}, wire.OpPin: wire.Pin{VM: 1, Pin: true}}[op]
		if body == nil {
			body = wire.Ref{ID: 1}
		}
		waits, other := d.ask(op, body), d.ask(wire.OpHello, wire.Hello{Cell: "a"})
		if m := d.answer(); m.ID != other || m.Err != nil {
			t.Fatalf("%s: the answer to %d came first (%v)", op, m.ID, m.Err)
		}
		close(done)
		if m := d.answer(); m.ID != waits {
			t.Errorf("%s: the answer is one to %d", op, m.ID)
		}
	}
}

// TestRequestOverATruncatedFile: that a page cannot be read is the answer to who needs it, and
// no lock is left locked.
func TestRequestOverATruncatedFile(t *testing.T) {
	s := newServer(t)
	base, truncate := overFile(t)
	defer base.Release()
	if err := s.keep(&source{id: 1, vcpus: 1, stacks: stacks{scratch: twoSeals(t, base, s.memory)}}); err != nil {
		t.Fatal(err)
	}
	truncate()
	d := connect(t, s)
	for range 2 {
		d.ask(wire.OpFork, wire.Fork{Source: 1, Limits: machine.Limits{DiskBytes: page.Size}})
		if e := d.answer().Err; e == nil || !strings.Contains(e.Text, page.ErrCorrupt.Error()) {
			t.Errorf("the answer is %v", e)
		}
	}
	if !s.layout.TryLock() {
		t.Error("the layout is locked")
	}
	if _, err := s.dropSource(nil, wire.Ref{ID: 1}); err != nil || s.memory.InUse() != 0 {
		t.Errorf("dropped: %v, %d pages are left", err, s.memory.InUse())
	}
}
