package inside

import (
	"testing"

	"github.com/forkd-dev/forkd/internal/cell/wire"
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
