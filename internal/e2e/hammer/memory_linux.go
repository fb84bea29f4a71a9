package main

import (
	"errors"
	"sync"
	"sync/atomic"
)

// cell has a cache line of its own.
type cell struct {
	v atomic.Int64
	_ [56]byte
}

func add(workers int) error {
	const each = 20_000
	var sum atomic.Int64
	var sum32 atomic.Uint32
	var next atomic.Int64
	seen := make([]atomic.Uint32, workers*each+1)
	together(workers, func(w int) {
		for range each {
			sum.Add(int64(w + 1))
			sum32.Add(0xffff_0001)
			seen[next.Add(1)].Add(1) // every ticket once
		}
	})
	total := 0
	for i := range seen {
		total += int(seen[i].Load())
		if n := seen[i].Load(); n > 1 {
			return want("tickets of one number", n, 1)
		}
	}
	return errors.Join(
		want("sum", sum.Load(), int64(each*workers*(workers+1)/2)),
		want("32-bit sum", sum32.Load(), uint32(uint64(each*workers)*0xffff_0001)),
		want("tickets", total, workers*each))
}

func compareAndSwap(workers int) error {
	const each = 5_000
	var narrow atomic.Uint32
	var wide atomic.Uint64
	together(workers, func(int) {
		for range each {
			for {
				old := wide.Load()
				if wide.CompareAndSwap(old, old*3+1) {
					break
				}
			}
			for {
				old := narrow.Load()
				if narrow.CompareAndSwap(old, old+7) {
					break
				}
			}
		}
	})
	v := uint64(0)
	for range each * workers {
		v = v*3 + 1
	}
	return errors.Join(want("product", wide.Load(), v), want("sum", narrow.Load(), uint32(7*each*workers)))
}

// bitwise has each worker set and clear bits of its own in common words.
func bitwise(workers int) error {
	const rounds = 5_000
	var narrow atomic.Uint32
	var wide atomic.Uint64
	var lost atomic.Int64
	together(workers, func(w int) {
		bit := uint32(1) << w
		for range rounds {
			if narrow.Or(bit)&bit != 0 || wide.Or(uint64(bit)<<32)&(uint64(bit)<<32) != 0 {
				lost.Add(1)
			}
			if narrow.And(^bit)&bit == 0 || wide.And(^(uint64(bit)<<32))&(uint64(bit)<<32) == 0 {
				lost.Add(1)
			}
		}
	})
	return errors.Join(want("lost bits", lost.Load(), 0), want("rest", uint64(narrow.Load())|wide.Load(), 0))
}

// extremes passes values through a word by exchange: each comes out once.
func extremes(workers int) error {
	const each = 20_000
	var word atomic.Uint64
	var sum atomic.Uint64
	together(workers, func(w int) {
		mine := uint64(0)
		for i := range each {
			mine += word.Swap(uint64(w*each + i + 1))
		}
		sum.Add(mine)
	})
	n := uint64(workers * each)
	return want("sum of what was exchanged", sum.Load()+word.Load(), n*(n+1)/2)
}

// publish passes plain data behind an atomic flag: the reader of a flag must see
// the data.
func publish(workers int) error {
	const rounds = 100
	type box struct {
		data [8]uint64
		flag atomic.Uint64
		_    [64]byte
		ack  atomic.Uint64
	}
	boxes := make([]box, workers)
	var wrong atomic.Int64
	together(2*workers, func(w int) {
		b := &boxes[w/2]
		for round := uint64(1); round <= rounds; round++ {
			if w%2 == 0 {
				for i := range b.data {
					b.data[i] = round * uint64(i+1)
				}
				b.flag.Store(round)
				await(&b.ack, round)
				continue
			}
			await(&b.flag, round)
			for i := range b.data {
				if b.data[i] != round*uint64(i+1) {
					wrong.Add(1)
				}
			}
			b.ack.Store(round)
		}
	})
	return want("values that came too late", wrong.Load(), 0)
}

// storeBuffers is Dekker's question: when each of two sets its flag and then looks
// at the other's, at least one sees the other.
func storeBuffers(workers int) error {
	const rounds = 500
	type pair struct {
		a, b   cell
		sa, sb cell
		done   [2]cell
	}
	pairs := make([]pair, max(workers/2, 1))
	var both atomic.Int64
	together(2*len(pairs), func(w int) {
		p := &pairs[w/2]
		mine, other, saw := &p.a, &p.b, &p.sa
		if w%2 == 1 {
			mine, other, saw = &p.b, &p.a, &p.sb
		}
		for round := int64(1); round <= rounds; round++ {
			meet(p.done[:], w%2, 3*round-2)
			mine.v.Store(round)
			saw.v.Store(other.v.Load())
			meet(p.done[:], w%2, 3*round-1)
			if w%2 == 0 && p.sa.v.Load() < round && p.sb.v.Load() < round {
				both.Add(1)
			}
			meet(p.done[:], w%2, 3*round)
		}
	})
	return want("rounds in which neither saw the other", both.Load(), 0)
}

// meet waits for the other of two.
func meet(done []cell, me int, round int64) {
	done[me].v.Store(round)
	for spins := 0; done[1-me].v.Load() < round; spins++ {
		relax(spins)
	}
}

func await(v *atomic.Uint64, round uint64) {
	for spins := 0; v.Load() < round; spins++ {
		relax(spins)
	}
}

func mutexes(workers int) error {
	const each = 4_000
	var (
		mu    sync.Mutex
		plain int
		table = map[int]int{}
	)
	together(2*workers, func(w int) {
		for i := range each {
			mu.Lock()
			plain++
			table[i%64]++
			mu.Unlock()
		}
	})
	sum := 0
	for _, n := range table {
		sum += n
	}
	return errors.Join(want("count", plain, 2*workers*each), want("sum of the table", sum, 2*workers*each))
}

func readWriteMutex(workers int) error {
	const each = 2_000
	var (
		mu     sync.RWMutex
		a, b   int
		uneven atomic.Int64
	)
	together(2*workers, func(w int) {
		for i := range each {
			if (i+w)%8 == 0 {
				mu.Lock()
				a++
				b++
				mu.Unlock()
				continue
			}
			mu.RLock()
			if a != b {
				uneven.Add(1)
			}
			mu.RUnlock()
		}
	})
	return errors.Join(want("uneven pairs", uneven.Load(), 0), want("writes", a, 2*workers*each/8))
}
