package warm

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/quiet"
)

// Layout of the shared page; the package comment explains it.
const (
	offCommand  = 0
	offState    = 1
	offGo       = 2
	offReseed   = 3
	offRenew    = 4
	offAnswer   = 5
	offAsleep   = 6
	offCurrent  = 8
	offTarget   = 16
	offSequence = 24
	offStates   = 32
	offSeed     = 64
	seedSize    = pureSize + stateCount*twisterSize
	pageSize    = 8192
	pureSize    = 64                    // of the seed, straight from the kernel
	entropySize = pureSize + StreamSize // what a whole seed takes from the kernel

	commandNone      = 0
	commandHold      = 1
	commandInterrupt = 2

	// commandSignal tells a runtime to look at its command. Interpreters and their libraries leave real-time signals in
	// this range alone.
	commandSignal = unix.Signal(60)
)

// page is the agent's side of the shared page. Nobody can make its file shorter, so looking at it cannot fault.
type page struct {
	file *os.File
	mem  []byte
}

func newPage() (*page, error) {
	p, err := mapPage()
	if err != nil {
		return nil, fmt.Errorf("making shared page: %w", err)
	}
	clear(p.mem) // so that no child has to find memory for it
	return p, nil
}

func mapPage() (*page, error) {
	fd, err := unix.MemfdCreate("forkd-runtime", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "shared page")
	err = unix.Ftruncate(fd, pageSize)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &page{file, mem}, nil
}

func (p *page) close() {
	_ = unix.Munmap(p.mem) // it was mapped as it is
	p.mem = nil
	p.file.Close()
}

func (p *page) get(offset int) uint64    { return atomic.LoadUint64(wordAt(p.mem, offset)) }
func (p *page) put(offset int, v uint64) { atomic.StoreUint64(wordAt(p.mem, offset), v) }

// current returns the id of the running evaluation.
func (p *page) current() uint64 { return p.get(offCurrent) }

// holds reports whether the runtime holds.
func (p *page) holds() bool { return p.mem[offState] == 1 }

// answers reports whether a runtime that holds will answer when that is over, and asleep whether it sleeps until then.
func (p *page) answers() bool { return p.mem[offAnswer] == 1 }
func (p *page) asleep() bool  { return p.mem[offAsleep] == 1 }

// command sets the command and, for a hold, clears what an earlier one left.
func (p *page) command(c byte) {
	if c == commandHold {
		p.mem[offState], p.mem[offGo], p.mem[offReseed] = 0, 0, 0
	}
	p.mem[offCommand] = c
}

// renew asks for a reseed outside a hold, with the seed in buf.
func (p *page) renew(seed []byte) {
	p.seed(seed)
	p.mem[offRenew] = 1
}

func (p *page) seed(seed []byte) { copy(p.mem[offSeed:], seed) }

// states returns where the runtime says that the states of its generators are in its memory; 0 for one that there is not.
func (p *page) states() (addresses [stateCount]uint64) {
	for i := range addresses {
		addresses[i] = p.get(offStates + 8*i)
	}
	return addresses
}

// release ends a hold, and has the runtime reseed its generators if the machine is another one now.
func (p *page) release(another bool) error {
	if another {
		p.mem[offReseed] = 1
	}
	p.mem[offGo] = 1
	if !p.asleep() {
		return nil
	}
	return quiet.Wake(p.mem)
}
