package warm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
)

// The generators whose states a runtime tells the place of, in the order of the page. Each is a Mersenne Twister: 624 words
// and a position of 4 bytes, which is the number of words that have been used up.
const (
	stateRandom = iota // the position comes before the words
	stateNumpy         // the position comes behind them
	stateCount
)

const (
	twisterWords = 624
	twisterSize  = 4 * twisterWords
)

// renew makes the generators of a frozen runtime new, wherever it was stopped. Those that a child could draw from before it
// comes to any code of ours get a new state right in its memory; the rest, and the reseeding proper, is done by the
// runtime's own code, which a signal starts as soon as the interpreter looks. Precondition: op is held.
func (d *direct) renew() error {
	if !d.r.alive() {
		return nil
	}
	seed, err := d.freshSeed()
	if err != nil {
		return err
	}
	d.sequence++
	if err := errors.Join(d.page.put(offSequence, d.sequence), d.page.renew(seed)); err != nil {
		return err
	}
	if err := d.overwrite(); err != nil {
		return fmt.Errorf("renewing the generators in memory: %w", err)
	}
	d.ordered, d.renewed, d.ready = true, true, false
	if d.page.current() != 0 {
		d.ready = d.covered()
	}
	return d.r.proc.Signal(commandSignal)
}

// freshSeed makes a seed from the kernel's generator. It is valid until the next call.
func (d *direct) freshSeed() ([]byte, error) {
	if err := quiet.Getrandom(d.entropy[:]); err != nil {
		return nil, err
	}
	expand(&d.entropy, &d.seed)
	return bytesOf(d.seed[:]), nil
}

// overwrite gives the generators in the process's memory that it knows the place of new states.
func (d *direct) overwrite() error {
	addresses, err := d.page.states()
	if err != nil {
		return err
	}
	for i, address := range addresses {
		if address == 0 {
			continue
		}
		seed, err := d.freshSeed()
		if err != nil {
			return err
		}
		state := seed[pureSize:][:twisterSize+4]
		position := state[twisterSize:]
		if i == stateRandom {
			copy(state[4:], state[:twisterSize])
			position = state[:4]
		}
		binary.NativeEndian.PutUint32(position, twisterWords)
		if err := writeMemory(d.r.proc.PID, address, state); err != nil {
			return err
		}
	}
	return nil
}

func writeMemory(pid int, address uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}
	n, err := unix.ProcessVMWritev(pid, local, remote, 0)
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d of %d bytes written at %#x", n, len(b), address)
	}
	return err
}

// covered reports whether no generator that the process has loaded could repeat once those of a known place are new. The
// runtime cannot have told of what was imported in the very evaluation that goes on.
func (d *direct) covered() bool {
	addresses, err := d.page.states()
	if err != nil || addresses[stateRandom] == 0 {
		return false
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", d.r.proc.PID))
	if err != nil {
		return false
	}
	defer f.Close()
	marks := [][]byte{[]byte("/_ssl.")}
	if addresses[stateNumpy] == 0 {
		marks = append(marks, []byte("/mtrand."))
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		for _, mark := range marks {
			if bytes.Contains(lines.Bytes(), mark) {
				return false
			}
		}
	}
	return lines.Err() == nil
}
