package main

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// relax gives way now and then, since there may be fewer processors than threads.
func relax(spins int) {
	if spins%16 == 15 {
		unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// channels sends numbers through a pipeline of goroutines that move between
// threads.
func channels(workers int) error {
	const each, stages = 500, 4
	first := make(chan int)
	last := first
	for range stages {
		in, out := last, make(chan int, 3)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for v := range in {
					out <- v + 1
				}
			})
		}
		go func() { wg.Wait(); close(out) }()
		last = out
	}
	go func() {
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for i := range each {
					first <- i
				}
			})
		}
		wg.Wait()
		close(first)
	}()
	sum := 0
	for v := range last {
		sum += v
	}
	return want("sum", sum, workers*(each*(each-1)/2+each*stages))
}

// threads has threads sleep and wake each other through a condition.
func threads(workers int) error {
	const rounds = 100
	var mu sync.Mutex
	cond := sync.NewCond(&mu)
	turn, taken := 0, make([]int, workers)
	together(workers, func(w int) {
		for range rounds {
			mu.Lock()
			for turn%workers != w {
				cond.Wait()
			}
			turn++
			taken[w]++
			cond.Broadcast()
			mu.Unlock()
		}
	})
	for _, n := range taken {
		if n != rounds {
			return want("turns of one thread", n, rounds)
		}
	}
	return want("turns", turn, rounds*workers)
}

// ring passes a token around threads that each sleep in a futex.
func ring(workers int) error {
	const rounds = 100
	words := make([]atomic.Uint32, workers+1)
	sum := 0 // guarded by whoever has the token
	together(workers, func(w int) {
		for round := uint32(1); round <= rounds; round++ {
			if w > 0 || round > 1 {
				for {
					v := words[w].Load()
					if v >= round {
						break
					}
					futex(&words[w], futexWait, v)
				}
			}
			sum += w
			next, turn := w+1, round
			if next == workers {
				next, turn = 0, round+1
			}
			words[next].Store(turn)
			futex(&words[next], futexWake, 1)
		}
	})
	return want("sum", sum, rounds*workers*(workers-1)/2)
}

// mappings maps pages, has another thread fill them and a third check them, and
// unmaps them: addresses are used again at once, so that a stale translation of
// any processor shows.
func mappings(workers int) error {
	const each, size = 60, 4 << 12
	type job struct {
		mem  []byte
		mark byte
	}
	var (
		fill  = make(chan job)
		check = make(chan job)
		wrong atomic.Int64
		errs  = make([]error, workers)
		fills sync.WaitGroup
		done  sync.WaitGroup
	)
	for range workers {
		fills.Go(func() {
			runtime.LockOSThread()
			for j := range fill {
				for i := range j.mem {
					if i%509 == 0 {
						if j.mem[i] != 0 {
							wrong.Add(1)
						}
						j.mem[i] = j.mark
					}
				}
				check <- j
			}
		})
		done.Go(func() {
			runtime.LockOSThread()
			for j := range check {
				for i := range j.mem {
					want := byte(0)
					if i%509 == 0 {
						want = j.mark
					}
					if j.mem[i] != want {
						wrong.Add(1)
					}
				}
				if unix.Munmap(j.mem) != nil {
					wrong.Add(1)
				}
			}
		})
	}
	together(workers, func(w int) {
		for i := range each {
			mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				errs[w] = err
				return
			}
			fill <- job{mem, byte(w*each+i) | 1}
		}
	})
	close(fill)
	fills.Wait()
	close(check)
	done.Wait()
	return errors.Join(append(errs, want("wrong bytes", wrong.Load(), 0))...)
}
