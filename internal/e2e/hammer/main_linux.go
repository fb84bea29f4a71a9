// Command hammer makes several processors of a guest contend for as long as it is
// told: atomic operations, locks, channels, threads that wake each other, mappings
// that come and go under other threads, and processes that share pages. Every round
// has a sum that it must come to; a wrong one ends the program with status 1.
//
//	hammer SECONDS
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// tests are run one after the other, for as long as there is time. A test does
// about a tenth of a second's work with as many workers as there are processors,
// and returns what is wrong.
var tests = []struct {
	name string
	run  func(workers int) error
}{
	{"add", add},
	{"compare-and-swap", compareAndSwap},
	{"bits", bitwise},
	{"extremes", extremes},
	{"publish", publish},
	{"store-buffers", storeBuffers},
	{"mutex", mutexes},
	{"read-write-mutex", readWriteMutex},
	{"channels", channels},
	{"threads", threads},
	{"futex-ring", ring},
	{"mappings", mappings},
	{"protections", protections},
	{"processes", processes},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: hammer SECONDS")
		os.Exit(2)
	}
	if os.Args[1] == child {
		childMain()
		return
	}
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hammer:", err)
		os.Exit(2)
	}
	rounds, took := 0, make([]time.Duration, len(tests))
	workers := runtime.NumCPU()
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end) || rounds == 0; rounds++ {
		for i, test := range tests {
			began := time.Now()
			if err := test.run(workers); err != nil {
				fmt.Printf("%s: round %d: %v\n", test.name, rounds, err)
				os.Exit(1)
			}
			took[i] += time.Since(began)
		}
	}
	fmt.Printf("processors %d, rounds %d\n", workers, rounds)
	for i, test := range tests {
		fmt.Printf("%s %.0f ms\n", test.name, took[i].Seconds()*1000/float64(rounds))
	}
}

// together runs f for every worker at once, in several goroutines of which each
// has a thread of its own.
func together(workers int, f func(worker int)) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			f(w)
		})
	}
	wg.Wait()
}

func want[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return nil
}
