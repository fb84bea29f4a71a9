package page

import (
	"fmt"
	"runtime/debug"
)

// lowest is an address below which no host maps anything.
const lowest = 64 << 10

// Guard calls f, which reads pages, and returns what f does. Pages are mapped
// from files; should somebody truncate one, reading it faults, and that is an
// error here, which wraps ErrCorrupt, instead of the end of the process. So is an
// AllocError. A fault near address zero has nothing to do with pages, and stays the
// panic that it is. It covers this goroutine, not those that f starts.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			if r.Addr() < lowest {
				panic(r)
			}
			err = fmt.Errorf("%w: reading a mapped page at %#x: %w", ErrCorrupt, r.Addr(), r)
		case *AllocError:
			err = r
		default:
			panic(r)
		}
	}()
	return f()
}
