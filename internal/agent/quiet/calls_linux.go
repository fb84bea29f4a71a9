package quiet

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Random is the kernel's random device, open before it is needed.
type Random struct {
	fd     uintptr
	itself bool
}

// OpenRandom opens the random device. It stays open for the life of the process. itself tells that in a restored machine the
// kernel has derived a new key from fresh entropy ahead of everything else.
func OpenRandom(itself bool) (*Random, error) {
	fd, err := unix.Open("/dev/random", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/random: %w", err)
	}
	return &Random{uintptr(fd), itself}, nil
}

// Reseed mixes in entropy from the host, at most 64 bytes, counts it, and makes the generator derive a new key at once:
// without that order, it would go on with the old key for up to a minute. There is nothing to do where the kernel has done
// so by itself.
func (r *Random) Reseed(entropy []byte) error {
	if r.itself {
		return nil
	}
	if errno := addEntropy(r.fd, entropy); errno != 0 {
		return os.NewSyscallError("ioctl RNDADDENTROPY", errno)
	}
	if errno := reseed(r.fd); errno != 0 {
		return os.NewSyscallError("ioctl RNDRESEEDCRNG", errno)
	}
	return nil
}

// Getrandom fills p, at most 256 bytes, from the kernel's generator.
func Getrandom(p []byte) error {
	n, errno := retry(func() (int, unix.Errno) { return getrandom(p) })
	if errno != 0 {
		return os.NewSyscallError("getrandom", errno)
	}
	if n != len(p) {
		return fmt.Errorf("getrandom gave %d of %d bytes", n, len(p))
	}
	return nil
}

// Piece is what is to lie somewhere in the memory of a process.
type Piece struct {
	Address uint64
	Content []byte
}

// maxPieces is how many pieces are written at once.
const maxPieces = 2

// WriteMemory writes at most two pieces into the memory of another process.
func WriteMemory(pid int, pieces []Piece) error {
	size := 0
	for _, p := range pieces {
		size += len(p.Content)
	}
	n, errno := processWrite(pid, pieces)
	if errno != 0 {
		return os.NewSyscallError("process_vm_writev", errno)
	}
	if n != size {
		return fmt.Errorf("%d of %d bytes written", n, size)
	}
	return nil
}

// Wake wakes everybody who sleeps by the futex at the beginning of some shared memory.
func Wake(mem []byte) error {
	if errno := futexWake(&mem[0]); errno != 0 {
		return os.NewSyscallError("futex", errno)
	}
	return nil
}

// SetClock steps CLOCK_REALTIME, given its value in nanoseconds since 1970 at
// which the machine's time counter was zero. Adding the counter here makes the
// result right however long the order was under way. A host that is busy may stop
// the machine between the reading and the setting, and then it is done again.
func SetClock(zero int64) error {
	const (
		tries  = 8
		within = int64(2 * time.Millisecond)
	)
	for range tries {
		before, err := counterNS()
		if err != nil {
			return err
		}
		if errno := setClock(zero + before); errno != 0 {
			return os.NewSyscallError("clock_settime", errno)
		}
		if after, _ := counterNS(); after-before < within {
			break
		}
	}
	return nil
}

// SetHostname sets the host name. The name must not be empty.
func SetHostname(name string) error {
	if errno := setHostname(name); errno != 0 {
		return os.NewSyscallError("sethostname", errno)
	}
	return nil
}
