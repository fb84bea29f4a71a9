package inside

import (
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// TestPinsAreCountedInOrder: a daemon that takes a pin off at once, since it waits for it no
// longer, leaves none.
func TestPinsAreCountedInOrder(t *testing.T) {
	s := newServer(t)
	v := addMachine(t, s, 1)
	d := connect(t, s)
	for range 300 {
		d.ask(wire.OpPin, wire.Pin{VM: 1, Pin: true})
		d.ask(wire.OpPin, wire.Pin{VM: 1})
		for range 2 {
			if m := d.answer(); m.Err != nil {
				t.Fatal(m.Err)
			}
		}
		if s.pinned(v) {
			t.Fatal("it is pinned for ever")
		}
	}
}

// TestPinsAreOfADaemon: they go with it, and one whose place another has taken makes none.
func TestPinsAreOfADaemon(t *testing.T) {
	s := newServer(t)
	v := addMachine(t, s, 1)
	pin := func(d *daemon, on bool) {
		t.Helper()
		d.ask(wire.OpPin, wire.Pin{VM: 1, Pin: on})
		if m := d.answer(); m.Err != nil {
			t.Fatal(m.Err)
		}
	}
	first := connect(t, s)
	pin(first, true)
	pin(first, true)
	if pin(first, false); !s.pinned(v) {
		t.Error("it is not pinned, of two pins one was taken off")
	}
	s.mu.Lock()
	former := s.control
	s.mu.Unlock()

	second := connect(t, s)
	pin(second, false)
	if s.pinned(v) {
		t.Error("it is pinned by a daemon whose place another has taken")
	}
	if _, err := s.pin(former, wire.Pin{VM: 1, Pin: true}); err == nil || s.pinned(v) {
		t.Errorf("one whose place another has taken has pinned it: %v", err)
	}
	pin(second, true)
	if _, err := s.pin(former, wire.Pin{VM: 1}); err == nil || !s.pinned(v) {
		t.Errorf("one whose place another has taken has unpinned it: %v", err)
	}
	second.Close()
	for end := time.Now().Add(30 * time.Second); s.pinned(v); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is pinned by a daemon that is gone")
		}
	}
}
