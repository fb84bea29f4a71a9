// Package processors bounds how many processors this process computes on at a time.
//
// A daemon whose machines live in other processes is woken up for every message that
// goes to and fro. With as many processors as the host has, Go's scheduler wakes another
// thread for nearly each of them, in the hope that there is something for it to do, and
// on a host that is busy with guests that costs more than it gains. So the daemon keeps to
// Few, and what computes for long (hashing, compressing, building) asks for All.
//
// Who has set GOMAXPROCS in the environment is obeyed: then nothing here changes it.
package processors

import (
	"os"
	"runtime"
	"sync"
)

// share is the part of the processors that are few: one of so many.
const share = 4

var state struct {
	mu   sync.Mutex
	all  int // 0: Few was not called; guarded by mu
	long int // who computes for long; guarded by mu
}

// Few has the process keep to a quarter of its processors, at least one. It is for the
// beginning.
func Few() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	if state.all == 0 {
		state.all = runtime.GOMAXPROCS(0)
		set()
	}
}

// All lets the process have all of its processors until done is called, which may be more
// than once.
func All() (done func()) {
	change := func(by int) {
		state.mu.Lock()
		defer state.mu.Unlock()
		state.long += by
		set()
	}
	change(1)
	return sync.OnceFunc(func() { change(-1) })
}

// set makes it so. The caller holds state.mu.
func set() {
	n := state.all
	switch {
	case n == 0:
		return
	case state.long == 0:
		n = max(1, n/share)
	}
	if runtime.GOMAXPROCS(0) != n {
		runtime.GOMAXPROCS(n)
	}
}
