package sched

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// usher lets others have the processor that a vCPU is on: goroutines, those first that
// are about to be woken by the network, and threads of other processes.
//
// A Gosched alone does not find the former: the runtime asks the network when it has run
// out of goroutines, and one that yields is not out of the way. So a vCPU waits for an
// event of its own, which is there already: the runtime has to ask the network to find
// it, and finds all others.
type usher struct {
	start sync.Once
	busy  sync.Mutex      // held by the one that asks; others need not
	last  time.Duration   // when somebody asked; guarded by busy
	conn  syscall.RawConn // nil: the host has no more descriptors
	asked bool            // guarded by busy
	count [8]byte         // of the event; guarded by busy

	stubborn atomic.Int64 // until then the kernel is not asked
}

// What it takes for the kernel to be left alone, and for how long.
const (
	tooLong = 2 * time.Millisecond
	defiant = 100 * time.Millisecond
)

// giveWay lets others go first. clock tells the time.
func (u *usher) giveWay(clock func() time.Duration) {
	now := clock()
	if u.busy.TryLock() {
		if now-u.last >= look { // or somebody else has asked, which is enough
			u.last = now
			u.ask()
		}
		u.busy.Unlock()
	}
	// What has been found stands in line now.
	runtime.Gosched()
	u.yield(clock)
}

// yield lets threads of other processes go first. Those that wake up would otherwise
// wait for the kernel's next tick, milliseconds later. But Linux takes a thread that
// yields for one that does not want its share, so where others are busy, too, and
// come back late, it is left alone for a while.
func (u *usher) yield(clock func() time.Duration) {
	began := clock()
	if int64(began) < u.stubborn.Load() {
		return
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	if ended := clock(); ended-began > tooLong {
		u.stubborn.Store(int64(ended + defiant))
	}
}

// ask has the runtime ask the network. The caller holds u.busy.
func (u *usher) ask() {
	u.start.Do(u.open)
	if u.conn == nil {
		return
	}
	u.asked = false
	// The error is that the descriptor is closed, which it never is.
	_ = u.conn.Read(u.raise)
}

// raise makes the event, and has the caller wait until it is found. It is called again
// then, and takes the event away for the next time.
func (u *usher) raise(fd uintptr) (found bool) {
	if u.asked {
		_, _ = unix.Read(int(fd), u.count[:])
		return true
	}
	u.asked = true
	binary.NativeEndian.PutUint64(u.count[:], 1)
	_, err := unix.Write(int(fd), u.count[:])
	return err != nil
}

func (u *usher) open() {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	u.conn, _ = os.NewFile(uintptr(fd), "eventfd").SyscallConn()
}
