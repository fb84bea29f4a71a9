package warm

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPageCommands(t *testing.T) {
	p, err := newPage()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.seed([]byte{9})
	if err := p.release(true); err != nil {
		t.Fatal(err)
	}
	if p.mem[offGo] != 1 || p.mem[offReseed] != 1 || p.mem[offSeed] != 9 {
		t.Errorf("after a release with a reseed: %v", p.mem[:offSeed+1])
	}
	// A hold forgets what an earlier one left.
	p.mem[offState] = 1
	p.command(commandHold)
	if got := [4]byte(p.mem); got != [4]byte{commandHold} {
		t.Errorf("after a hold: %v", got)
	}
	if p.holds() || p.answers() || p.asleep() {
		t.Error("it holds, answers or sleeps before it has said so")
	}
	for _, said := range []struct {
		offset int
		is     func() bool
	}{{offState, p.holds}, {offAnswer, p.answers}, {offAsleep, p.asleep}} {
		p.mem[said.offset] = 1
		if !said.is() {
			t.Errorf("byte %d is set, and says nothing", said.offset)
		}
	}
	if err := p.release(false); err != nil {
		t.Errorf("waking nobody: %v", err)
	}
	if p.put(offCurrent, 77); p.current() != 77 {
		t.Errorf("current is %d", p.current())
	}
	p.put(offStates, 5)
	p.put(offStates+8, 6)
	if got := p.states(); got != [stateCount]uint64{5, 6} {
		t.Errorf("states are %v", got)
	}
}

// Whoever else has the page cannot take it away under the agent's hands.
func TestPageCannotShrink(t *testing.T) {
	p, err := newPage()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	other, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(p.file.Fd())), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Ftruncate(int(other.Fd()), 0); err != unix.EPERM {
		t.Errorf("making it shorter: %v", err)
	}
}
