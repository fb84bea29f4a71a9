package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// protections takes the right to write away from under threads that write: after
// the call that does so, no write of any thread may come through.
func protections(workers int) error {
	const rounds = 25
	mem, err := unix.Mmap(-1, 0, 4<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	var stop atomic.Bool
	var faults, leaks atomic.Int64
	var wg sync.WaitGroup
	for w := range max(workers-1, 1) {
		wg.Go(func() {
			debug.SetPanicOnFault(true)
			word := wordAt(mem, w%4<<12+8*w)
			for !stop.Load() {
				if !tries(word) {
					faults.Add(1)
					unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				}
			}
		})
	}
	for range rounds {
		if err = unix.Mprotect(mem, unix.PROT_READ); err != nil {
			break
		}
		before := snapshot(mem)
		for range 200 {
			if snapshot(mem) != before {
				leaks.Add(1)
				break
			}
		}
		if err = unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			break
		}
		unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	stop.Store(true)
	wg.Wait()
	return errors.Join(err, want("rounds with writes to protected memory", leaks.Load(), 0))
}

// tries adds to a word, and reports whether it could.
func tries(word *atomic.Uint64) (ok bool) {
	defer func() { ok = recover() == nil }()
	for range 50 {
		word.Add(1)
	}
	return true
}

func snapshot(mem []byte) (sum [4]uint64) {
	for page := range sum {
		for i := 0; i < 64; i += 8 {
			sum[page] += wordAt(mem, page<<12+i).Load()
		}
	}
	return sum
}

// child is the argument of a process that processes starts.
const child = "child"

// processes starts processes of this program, whose code and pages they share, in
// parallel.
func processes(workers int) error {
	errs := make([]error, workers)
	together(workers, func(w int) {
		out, err := exec.Command("/proc/self/exe", child).Output()
		if err == nil {
			err = want("output", string(out), fmt.Sprintln(childSum()))
		}
		errs[w] = err
	})
	return errors.Join(errs...)
}

func childMain() { fmt.Fprintln(os.Stdout, childSum()) }

func childSum() (sum uint64) {
	table := make([]uint64, 10_000)
	for i := range table {
		table[i] = uint64(i) * 0x9e3779b97f4a7c15
	}
	for _, v := range table {
		sum = sum<<1 | sum>>63
		sum ^= v
	}
	return sum
}
