package warm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

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
	seed, rest, err := d.freshSeed()
	if err != nil {
		return err
	}
	d.sequence++
	d.page.put(offSequence, d.sequence)
	d.page.renew(seed)
	if err := d.overwrite(d.page.states(), &rest); err != nil {
		return err
	}
	d.ordered, d.renewed, d.ready = true, true, false
	if d.page.current() != 0 {
		d.ready = d.covered()
	}
	return d.r.proc.Signal(commandSignal)
}

// freshSeed makes a seed from the kernel's generator. It is valid until the next call. What is left of the stream that most
// of it was taken from may be used up, too.
func (d *direct) freshSeed() (seed []byte, rest Stream, err error) {
	if err := quiet.Getrandom(d.entropy[:]); err != nil {
		return nil, rest, err
	}
	rest = d.expand()
	return bytesOf(d.seed[:]), rest, nil
}

// expand makes a seed of the entropy: first that itself, for generators that must not be guessed, and then what a stream
// yields.
func (d *direct) expand() Stream {
	copy(bytesOf(d.seed[:]), d.entropy[:pureSize])
	stream := NewStream((*[StreamSize]byte)(d.entropy[pureSize:]))
	stream.fill(d.seed[pureSize/8:])
	return stream
}

// overwrite gives the generators at these addresses in the process's memory new states, all in one system call. The process
// stands still.
func (d *direct) overwrite(addresses [stateCount]uint64, seeds *Stream) error {
	var pieces [stateCount]quiet.Piece
	n := 0
	for i, address := range addresses {
		if address == 0 {
			continue
		}
		const size = twisterSize/8 + 1
		words := d.seed[size*n:][:size]
		seeds.fill(words)
		state := bytesOf(words)[:twisterSize+4]
		position := state[:4]
		if i == stateNumpy {
			position = state[twisterSize:]
		}
		binary.NativeEndian.PutUint32(position, twisterWords)
		pieces[n] = quiet.Piece{Address: address, Content: state}
		n++
	}
	if n == 0 {
		return nil
	}
	if err := quiet.WriteMemory(d.r.proc.PID, pieces[:n]); err != nil {
		return fmt.Errorf("renewing generators in memory: %w", err)
	}
	return nil
}

// covered reports whether no generator that the process has loaded could repeat once those of a known place are new. The
// runtime cannot have told of what was imported in the very evaluation that goes on.
func (d *direct) covered() bool {
	addresses := d.page.states()
	if addresses[stateRandom] == 0 {
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
