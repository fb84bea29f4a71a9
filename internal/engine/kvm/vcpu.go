//go:build linux && amd64

package kvm

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/engine"
)

// vcpu is one virtual processor. All but its atomics belong to the goroutine that is
// in Run.
type vcpu struct {
	vm      *vm
	id      int
	fd      int
	shared  shared
	pending bool         // the last exit is not complete: the guest has not seen the answer
	kicked  atomic.Bool  // Kick was called
	thread  atomic.Int64 // that is in Run, or 0
	used    atomic.Int64 // processor time of Runs that have ended, in nanoseconds
}

func newVCPU(e *Engine, m *vm, id int) (v *vcpu, err error) {
	v = &vcpu{vm: m, id: id}
	if v.fd, err = call(m.fd, createVCPU, uintptr(id)); err != nil {
		return nil, fmt.Errorf("creating vCPU %d: %w", id, err)
	}
	v.shared.mem, err = unix.Mmap(v.fd, 0, e.runSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(v.fd)
		return nil, fmt.Errorf("mapping vCPU %d: %w", id, err)
	}
	if err := v.setCPUID(e.cpuid); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func (v *vcpu) close() error {
	err := unix.Munmap(v.shared.mem)
	if e := unix.Close(v.fd); err == nil {
		err = e
	}
	return err
}

// Kick implements engine.VCPU. The vCPU leaves the guest, or does not enter it.
func (v *vcpu) Kick() {
	v.kicked.Store(true)
	v.shared.setImmediateExit(1)
	if thread := v.thread.Load(); thread != 0 {
		// The thread may have gone: then nobody is in the guest either.
		_ = unix.Tgkill(os.Getpid(), int(thread), unix.SIGURG)
	}
}

// Counters implements engine.VCPU. An instruction stands for a nanosecond of the
// thread's time: how many there were is not known without a profiler's help.
func (v *vcpu) Counters() engine.Counters {
	used := v.used.Load()
	if thread := v.thread.Load(); thread != 0 {
		used += threadTime(int(thread))
	}
	return engine.Counters{Instructions: uint64(used), Busy: time.Duration(used)}
}

// threadTime returns the processor time of a thread of this process since it began,
// or 0 if there is none.
func threadTime(thread int) int64 {
	// The clock of a thread is its number, inverted, with the kind of clock below
	// (the kernel's include/linux/posix-timers.h).
	const perThread, scheduled = 4, 2
	var t unix.Timespec
	if unix.ClockGettime(int32(^thread<<3|perThread|scheduled), &t) != nil {
		return 0
	}
	return t.Nano()
}

// Run implements engine.VCPU.
func (v *vcpu) Run() (engine.Exit, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := v.vm.start(); err != nil {
		return 0, err
	}
	v.vm.enter()
	defer v.vm.leave()
	thread := unix.Gettid()
	v.used.Add(-threadTime(thread))
	v.thread.Store(int64(thread))
	defer func() {
		v.thread.Store(0)
		v.used.Add(threadTime(thread))
	}()
	for {
		v.shared.setImmediateExit(0)
		if failed := v.vm.failed.Load(); failed != nil {
			return 0, *failed
		}
		if v.kicked.Swap(false) {
			return v.complete()
		}
		exit, done, err := v.step()
		if done || err != nil {
			return exit, err
		}
	}
}

// complete has the guest see the answer to its last exit, without executing on. An
// instruction that accesses devices more than once is at all of them before it ends.
func (v *vcpu) complete() (engine.Exit, error) {
	for v.pending {
		v.shared.setImmediateExit(1)
		if exit, done, err := v.step(); done || err != nil {
			return exit, err
		}
	}
	return engine.Kicked, nil
}

// step executes guest code until there is something to do, and does it.
func (v *vcpu) step() (exit engine.Exit, done bool, err error) {
	_, err = call(v.fd, run, 0)
	v.pending = false
	switch {
	case err == unix.EINTR:
		return 0, false, nil
	case err == unix.EAGAIN: // it has just been started
		return 0, false, nil
	case err != nil:
		return 0, true, fmt.Errorf("running vCPU %d: %w", v.id, err)
	}
	mem := v.shared.mem
	switch reason := binary.NativeEndian.Uint32(mem[sharedReason:]); reason {
	case exitInterrupted:
		return 0, false, nil
	case exitMMIO:
		v.pending = true
		v.vm.atDevices(v.memoryAccess)
		return 0, false, nil
	case exitIO:
		v.pending = true
		v.vm.atDevices(func() { exit, done = v.portAccess() })
		return exit, done, nil
	case exitShutdown: // a triple fault, which resets a processor
		return engine.Reset, true, nil
	case exitFailEntry:
		return 0, true, fmt.Errorf("the processor refused to run vCPU %d (reason %#x)", v.id, binary.NativeEndian.Uint64(mem[sharedExit:]))
	case exitInternalError: // what the guest has done cannot be emulated
		return engine.Failed, true, nil
	default:
		return 0, true, fmt.Errorf("vCPU %d left the guest for an unknown reason %d", v.id, reason)
	}
}

// memoryAccess answers an access to memory that is not RAM: struct kvm_run's mmio.
func (v *vcpu) memoryAccess() {
	mem := v.shared.mem[sharedExit:]
	gpa := binary.NativeEndian.Uint64(mem)
	data := mem[8:16]
	width := int(binary.NativeEndian.Uint32(mem[16:]))
	if width != 1 && width != 2 && width != 4 && width != 8 {
		clear(data)
		return
	}
	if mem[20] != 0 {
		v.vm.bus.Write(gpa, width, binary.LittleEndian.Uint64(data)&mask(width))
		return
	}
	value, ok := v.vm.bus.Read(gpa, width)
	if !ok {
		value = ^uint64(0) // as on a bus where nobody answers
	}
	binary.LittleEndian.PutUint64(data, value)
}

func mask(width int) uint64 { return 1<<(8*width-1)<<1 - 1 }
