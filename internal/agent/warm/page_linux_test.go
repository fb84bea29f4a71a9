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
	p.release(true)
	if p.mem[offGo] != 1 || p.mem[offReseed] != 1 || p.mem[offSeed] != 9 {
		t.Errorf("after a release with a reseed: %v", p.mem[:offSeed+1])
	}
	// A hold forgets what an earlier one left.
	p.mem[offState] = 1
	p.command(commandHold)
	if got := [4]byte(p.mem); got != [4]byte{commandHold} {
		t.Errorf("after a hold: %v", got)
	}
	if held, answers := p.holds(); held || answers {
		t.Errorf("held is %v, answers %v", held, answers)
	}
	p.mem[offState], p.mem[offAnswer] = 1, 1
	if held, answers := p.holds(); !held || !answers {
		t.Errorf("held is %v, answers %v", held, answers)
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
