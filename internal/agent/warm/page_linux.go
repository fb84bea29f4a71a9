package warm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
)

// Layout of the shared page; the package comment explains it.
const (
	offCommand  = 0
	offState    = 1
	offGo       = 2
	offRenew    = 4
	offCurrent  = 8
	offTarget   = 16
	offSequence = 24
	offStates   = 32
	offSeed     = 64
	seedSize    = pureSize + stateCount*twisterSize
	pageSize    = 8192
	pureSize    = 64            // of the seed, straight from the kernel
	entropySize = pureSize + 16 // what a reseed takes from the kernel

	commandNone      = 0
	commandHold      = 1
	commandInterrupt = 2

	// commandSignal tells a runtime to look at its command. Interpreters and their libraries leave real-time signals in
	// this range alone.
	commandSignal = unix.Signal(60)
)

// page is the agent's side of the shared page.
type page struct {
	file *os.File
	io   *quiet.File
}

func newPage() (*page, error) {
	fd, err := unix.MemfdCreate("forkd-runtime", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making shared page: %w", err)
	}
	file := os.NewFile(uintptr(fd), "shared page")
	// Written, so that no child has to find memory for it.
	if _, err := file.Write(make([]byte, pageSize)); err != nil {
		file.Close()
		return nil, fmt.Errorf("making shared page: %w", err)
	}
	return &page{file, quiet.FileOf(file)}, nil
}

func (p *page) close() { p.file.Close() }

func (p *page) state() (byte, error) {
	var b [1]byte
	err := p.io.ReadAt(b[:], offState)
	return b[0], err
}

func (p *page) current() uint64 {
	var b [8]byte
	if p.io.ReadAt(b[:], offCurrent) != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

func (p *page) put(offset int64, v uint64) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return p.io.WriteAt(b[:], offset)
}

// command sets the command and, for a hold, clears what an earlier one left.
func (p *page) command(c byte) error {
	if c == commandInterrupt || c == commandNone {
		return p.io.WriteAt([]byte{c}, offCommand)
	}
	return p.io.WriteAt([]byte{c, 0, 0, 0}, offCommand)
}

// renew asks for a reseed outside a hold, with the seed in buf.
func (p *page) renew(seed []byte) error {
	return errors.Join(p.io.WriteAt(seed, offSeed), p.io.WriteAt([]byte{1}, offRenew))
}

// states returns where the runtime says that the states of its generators are in its memory; 0 for one that there is not.
func (p *page) states() (addresses [stateCount]uint64, err error) {
	var b [8 * stateCount]byte
	err = p.io.ReadAt(b[:], offStates)
	for i := range addresses {
		addresses[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return addresses, err
}

// release ends a hold, with new states for the runtime's generators if there is a seed.
func (p *page) release(seed []byte) error {
	order := [2]byte{1, 0}
	if seed != nil {
		if err := p.io.WriteAt(seed, offSeed); err != nil {
			return err
		}
		order[1] = 1
	}
	return p.io.WriteAt(order[:], offGo)
}

// expand makes a seed. Its first bytes are the entropy itself, for generators that must not be guessed; the rest is expanded
// from the entropy's end, for those with so large a state that the kernel would take longer to fill it than to do everything
// else, and that are no secret anyway: a SplitMix sequence whose start and step are both random.
func expand(entropy *[entropySize]byte, words *[seedSize / 8]uint64) {
	copy(bytesOf(words[:]), entropy[:pureSize])
	state := binary.NativeEndian.Uint64(entropy[pureSize:])
	step := binary.NativeEndian.Uint64(entropy[pureSize+8:]) | 1
	for i := pureSize / 8; i < len(words); i++ {
		state += step
		z := (state ^ state>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		words[i] = z ^ z>>31
	}
}
