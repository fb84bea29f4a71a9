package warm

import (
	"io"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Who has left before a run's turn has asked for nothing, also if the turn is there as that is noticed.
func TestRunOfNobody(t *testing.T) {
	var r relay
	r.init()
	left := make(chan struct{})
	close(left)
	for range 64 {
		err := r.execute(wire.RunRequest{ID: 1}, wire.NewWriter(io.Discard), left, nil, func(*relayed) error {
			t.Fatal("it is begun")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if r.count != 0 || len(r.turn) != 1 {
		t.Errorf("%d runs, %d turns", r.count, len(r.turn))
	}
}
