package inside

import (
	"errors"
	"testing"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// TestStreamIsOpenOnce: a daemon that opens a stream which is open makes no sense, and does no
// harm to that one.
func TestStreamIsOpenOnce(t *testing.T) {
	s := newServer(t)
	addMachine(t, s, 1)
	ours, _ := pair(t)
	link, err := wire.NewLink(ours)
	if err != nil {
		t.Fatal(err)
	}
	a := &streams{server: s, link: link, open: make(map[uint32]*stream)}
	opens := wire.Frame{Type: wire.TypeOpen, Stream: 7, Payload: wire.Open{VM: 1, Port: 1}.Encode()}
	if err := a.take(opens); err != nil || a.open[7] == nil {
		t.Fatalf("opened: %v, stream %v", err, a.open[7])
	}
	first := a.open[7]
	if err := a.take(opens); !errors.Is(err, wire.ErrMalformed) || a.open[7] != first {
		t.Errorf("opened twice: %v", err)
	}
	a.close()
}
