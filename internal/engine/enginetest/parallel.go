package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/page"
)

// manyVCPUs are numbers of vCPUs that a machine can have, if its engine has as many.
var manyVCPUs = []int{1, 2, 3, 4, 8, 16}

// spinlockOf names the program "spinlock" for so many vCPUs.
func spinlockOf(vcpus int) string { return fmt.Sprint("spinlock-", vcpus) }

// parallelVCPUs is how many vCPUs most of the programs for several have.
const parallelVCPUs = 4

// What the programs for several vCPUs share, as offsets into the shared data.
const (
	wordReady = 0x08
	wordDone  = 0x10
	wordMeet  = 0x18
	wordStop  = 0x20

	sumRounds         = 20_000
	sumAdd            = 0x40
	sumAddNarrow      = 0x48
	sumXor            = 0x50
	sumXorPairs       = 0x58
	sumOr             = 0x60
	sumMax            = 0x68
	sumMin            = 0x70
	sumSwap           = 0x78
	sumSwapped        = 0x80
	sumReserved       = 0x88
	sumReservedNarrow = 0x90

	lockRounds = 500
	lockWord   = 0x40
	lockFirst  = 0x80
	lockSecond = 0xc0

	streamRounds = 50_000
	streamNumber = 0x40
	streamFlag   = 0x80
	streamWrong  = 0xc0

	litmusRounds  = 200
	litmusResults = 0x1000 // 4 KiB for each vCPU
	litmusCells   = 0x4000

	pingRounds = 100
	pingCounts = 0x40

	shootRounds = 300
	shootOwn    = 0x100

	shareRounds = 20
	shareCount  = 16
	sharePages  = 0x4000
	sweepPages  = 40

	deliveries   = 40
	deliverReady = 0x100

	patchRounds = 100

	countWords = 0x100

	stateBefore     = 0x40
	stateStart      = 0x48
	stateStarted    = 0x50
	stateStartAgain = 0x58
	stateOpaque     = 0x60
	stateAwake      = 0x68
	stateStopped    = 0x70
	stateRestart    = 0x78
	stateThird      = 0x80
)

// parallelTests are of several vCPUs that execute at the same time.
var parallelTests = []test{
	{"parallel-sums", testSums},
	{"parallel-spinlock", testSpinlock},
	{"parallel-message-passing", testStream},
	{"parallel-store-buffers", testStoreBuffers},
	{"parallel-load-buffers", testLoadBuffers},
	{"parallel-ipi", testPingPong},
	{"parallel-shootdown", testShootdown},
	{"parallel-shared-pages", testShare},
	{"parallel-shared-pages-sealed", testShareSealed},
	{"parallel-deliveries", testDeliver},
	{"parallel-device-deliveries", testTake},
	{"parallel-patched-code", testPatch},
	{"parallel-posts", testParallelPosts},
	{"parallel-save-load", testParallelSaveLoad},
	{"parallel-no-memory", testParallelNoMemory},
	{"hart-states", testStates},
	{"restarted-vcpu", testRestart},
}

// runners runs all vCPUs until paused.
type runners struct {
	f    *fixture
	wg   sync.WaitGroup
	exit chan engine.Exit // of the vCPU that ended the machine
	errs chan error
	stop chan struct{}
}

// startAll runs all vCPUs, each on its own goroutine.
func (f *fixture) startAll() *runners {
	vcpus := f.vm.VCPUs()
	r := &runners{f: f, exit: make(chan engine.Exit, len(vcpus)), errs: make(chan error, len(vcpus)), stop: make(chan struct{})}
	for _, v := range vcpus {
		r.wg.Go(func() {
			for {
				exit, err := v.Run()
				switch {
				case err != nil:
					r.errs <- err
					return
				case exit != engine.Kicked:
					r.exit <- exit
					return
				}
				select {
				case <-r.stop:
					return
				default:
				}
			}
		})
	}
	return r
}

// pause returns when no vCPU runs.
func (r *runners) pause() {
	r.f.t.Helper()
	close(r.stop)
	for _, v := range r.f.vm.VCPUs() {
		v.Kick()
	}
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	await(r.f.t, done)
}

// runParallel runs the program on so many vCPUs until it powers off.
func (f *fixture) runParallel(program string, vcpus int) {
	f.t.Helper()
	f.vcpus = vcpus
	f.boot(program)
	r := f.startAll()
	if exit := await(f.t, r.exit); exit != engine.Off {
		f.t.Errorf("Run returned %v", exit)
	}
	r.pause()
}

func (f *fixture) wantWords(want map[uint64]uint64) {
	f.t.Helper()
	for offset, v := range want {
		if got := f.word(offset); got != v {
			f.t.Errorf("the word at %#x is %#x (%d), want %#x (%d)", offset, got, int64(got), v, int64(v))
		}
	}
}

func testSums(t *testing.T, f *fixture) {
	f.runParallel("sums", parallelVCPUs)
	const n, rounds = parallelVCPUs, sumRounds
	given := uint64(0) // to the exchange
	for id := range uint64(n) {
		for round := uint64(1); round <= rounds; round++ {
			given += round<<3 + id
		}
	}
	minimum := -int32(rounds<<3 + n - 1)
	f.wantWords(map[uint64]uint64{
		sumAdd:            3 * n * rounds,
		sumAddNarrow:      3 * n * rounds,
		sumXor:            0,
		sumXorPairs:       0,
		sumOr:             1<<n - 1,
		sumMax:            rounds<<3 + n - 1,
		sumMin:            uint64(uint32(minimum)),
		sumReserved:       n * rounds,
		sumReservedNarrow: n * rounds,
	})
	if got := f.word(sumSwapped) + f.word(sumSwap); got != given {
		t.Errorf("of %d given to an exchange, %d came out", given, got)
	}
}

// testSpinlock has each number of vCPUs that there can be compete for a lock.
func testSpinlock(t *testing.T, f *fixture) {
	for _, n := range manyVCPUs {
		if n > f.isa.maxVCPUs {
			break
		}
		f.runParallel(spinlockOf(n), n)
		total := uint64(n * lockRounds)
		f.wantWords(map[uint64]uint64{lockWord: 0, lockFirst: total, lockSecond: total})
	}
}

// testStream is MP with fences (unpriv 17): who sees the flag sees the number.
func testStream(t *testing.T, f *fixture) {
	f.runParallel("stream", 2)
	f.wantWords(map[uint64]uint64{streamFlag: streamRounds, streamWrong: 0})
}

// litmus returns how often each pair of results came out.
func (f *fixture) litmus() map[[2]uint64]int {
	outcomes := make(map[[2]uint64]int)
	for i := range uint64(litmusRounds) {
		outcomes[[2]uint64{f.word(litmusResults + 8*i), f.word(litmusResults + page.Size + 8*i)}]++
	}
	return outcomes
}

// testStoreBuffers is SB: with fences, at least one sees the other's store. Without
// them neither need to, which shows that the vCPUs are parallel.
func testStoreBuffers(t *testing.T, f *fixture) {
	f.runParallel("sb", 2)
	outcomes := f.litmus()
	if n := outcomes[[2]uint64{0, 0}]; n > 0 || outcomes[[2]uint64{0, 1}]+outcomes[[2]uint64{1, 0}]+outcomes[[2]uint64{1, 1}] != litmusRounds {
		t.Errorf("with fences: %v", outcomes)
	}
	f.runParallel("sb-relaxed", 2)
	relaxed := f.litmus()
	for got := range relaxed {
		if got[0] > 1 || got[1] > 1 {
			t.Errorf("without fences: loads gave %v", got)
		}
	}
	t.Logf("with fences %v, without %v", outcomes, relaxed)
}

// testLoadBuffers is LB: not both see the store that follows the other's load.
func testLoadBuffers(t *testing.T, f *fixture) {
	f.runParallel("lb", 2)
	outcomes := f.litmus()
	if n := outcomes[[2]uint64{1, 1}]; n > 0 || outcomes[[2]uint64{0, 1}]+outcomes[[2]uint64{1, 0}]+outcomes[[2]uint64{0, 0}] != litmusRounds {
		t.Errorf("loads gave %v", outcomes)
	}
}

func testPingPong(t *testing.T, f *fixture) {
	f.runParallel("ipi", 2)
	f.wantWords(map[uint64]uint64{pingCounts: pingRounds, pingCounts + 8: pingRounds})
}

func testShootdown(t *testing.T, f *fixture) {
	f.runParallel("shootdown", 2)
	f.wantWords(map[uint64]uint64{streamFlag: shootRounds, streamWrong: 0, shootOwn: 0})
}

func (f *fixture) wantShared() {
	f.t.Helper()
	for p := range uint64(shareCount) {
		for id := range uint64(parallelVCPUs) {
			want := uint64(shareRounds)
			if id == (shareCount-p)%parallelVCPUs {
				want = 0 // it only waits
			}
			f.wantWords(map[uint64]uint64{sharePages + p*page.Size + 64*id: want})
		}
	}
}

// testShare has all vCPUs write to pages that none has written before, at the same
// time, while the others read them.
func testShare(t *testing.T, f *fixture) {
	f.runParallel("share", parallelVCPUs)
	f.wantShared()
}

// testShareSealed is testShare with the memory sealed again and again, so that the
// pages have to be copied anew.
func testShareSealed(t *testing.T, f *fixture) {
	f.vcpus = parallelVCPUs
	f.boot("share")
	for range 200 {
		r := f.startAll()
		ended := false
		select {
		case exit := <-r.exit:
			if ended = true; exit != engine.Off {
				t.Fatalf("Run returned %v", exit)
			}
		case err := <-r.errs:
			t.Fatal(err)
		case <-time.After(2 * time.Millisecond):
		}
		r.pause()
		if ended || len(r.exit) > 0 {
			break
		}
		f.overlay.Seal().Release()
		f.memory.Invalidate()
	}
	if f.word(wordDone) != parallelVCPUs { // not within 200 rounds on this host
		r := f.startAll()
		await(t, r.exit)
		r.pause()
	}
	f.wantShared()
}

// testDeliver has one vCPU write to pages that the other has read and nobody
// written, and then a flag: who sees the flag sees what is in the page.
func testDeliver(t *testing.T, f *fixture) {
	f.runParallel("deliver", 2)
	f.wantWords(map[uint64]uint64{streamFlag: deliveries, streamWrong: 0})
}

// testTake is testDeliver with a device that writes.
func testTake(t *testing.T, f *fixture) {
	f.vcpus = 2
	f.boot("take")
	signals := f.device.signals()
	r := f.startAll()
	for i := range uint64(deliveries) {
		if got := await(t, signals); got != i+1 {
			t.Fatalf("program waits for %d, want %d", got, i+1)
		}
		f.vm.Post(func() {
			data := f.isa.ramBase + dataOffset
			err := errors.Join(f.memory.PutUint64(data+sharePages+i*page.Size, i+1), f.memory.PutUint64(data+streamFlag, i+1))
			if err != nil {
				t.Error(err)
			}
		})
	}
	if exit := await(t, r.exit); exit != engine.Off {
		t.Errorf("Run returned %v", exit)
	}
	r.pause()
	f.wantWords(map[uint64]uint64{streamFlag: deliveries, streamWrong: 0})
}

func testPatch(t *testing.T, f *fixture) {
	f.runParallel("patch", 2)
	f.wantWords(map[uint64]uint64{streamFlag: patchRounds, streamWrong: 0})
}

// counts returns what the vCPUs have counted to.
func (f *fixture) counts() (n [parallelVCPUs]uint64) {
	for id := range n {
		n[id] = f.word(countWords + 64*uint64(id))
	}
	return n
}

// startCounting runs count-all.
func (f *fixture) startCounting() *runners {
	f.vcpus = parallelVCPUs
	f.boot("count-all")
	r := f.startAll()
	f.awaitCounts([parallelVCPUs]uint64{})
	return r
}

// awaitCounts waits until every running vCPU has counted on.
func (f *fixture) awaitCounts(from [parallelVCPUs]uint64) {
	for {
		got := make(chan [parallelVCPUs]uint64, 1)
		f.vm.Post(func() { got <- f.counts() })
		now, done := await(f.t, got), true
		for id := range now {
			done = done && now[id] > from[id]
		}
		if done {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// testParallelPosts posts functions that write to memory while all vCPUs execute:
// no two run at the same time, and each runs once.
func testParallelPosts(t *testing.T, f *fixture) {
	r := f.startCounting()
	const posts, each = 8, 50
	var ran [posts]int // written by posted functions only
	var wg sync.WaitGroup
	for p := range posts {
		wg.Go(func() {
			for range each {
				done := make(chan error)
				f.vm.Post(func() {
					ran[p]++
					at := f.isa.ramBase + dataOffset + 0x4000 + uint64(p*each+ran[p])*page.Size/16
					done <- errors.Join(f.memory.PutUint64(at, uint64(ran[p])))
				})
				if err := await(t, done); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r.pause()
	for p, n := range ran {
		if n != each {
			t.Errorf("%d functions of poster %d ran, want %d", n, p, each)
		}
	}
}

// testParallelSaveLoad saves a machine whose vCPUs all execute; the loaded one goes
// on where it was.
func testParallelSaveLoad(t *testing.T, f *fixture) {
	f.startCounting().pause()
	saved, before := f.save(), f.counts()
	r := f.parse(saved)
	f.make(nil, r)
	if err := r.Done(); err != nil {
		t.Error(err)
	}
	if again := f.save(); !bytes.Equal(again, saved) {
		t.Error("saving what was just loaded gives other bytes")
	}
	again := f.startAll()
	f.awaitCounts(before)
	again.pause()
	middle := f.counts()
	if err := f.memory.PutUint64(f.isa.ramBase+dataOffset+wordStop, 1); err != nil {
		t.Fatal(err)
	}
	last := f.startAll()
	await(t, last.exit)
	last.pause()
	for id, n := range f.counts() {
		if n < middle[id] || n > middle[id]+1 {
			t.Errorf("vCPU %d counted to %d, then %d, then %d", id, before[id], middle[id], n)
		}
	}
}

// testParallelNoMemory: when the host has no page for one vCPU, that one fails, and
// the others can be stopped.
func testParallelNoMemory(t *testing.T, f *fixture) {
	f.quota = 8
	f.vcpus = parallelVCPUs
	f.boot("share")
	r := f.startAll()
	if err := await(t, r.errs); !errors.Is(err, page.ErrQuota) {
		t.Errorf("Run returned error %v, want a page quota error", err)
	}
	r.pause()
}

func testStates(t *testing.T, f *fixture) {
	f.runParallel("states", 2)
	const alreadyAvailable = ^uint64(0) - 5
	f.wantWords(map[uint64]uint64{
		stateBefore: 1, stateStart: 0, stateStarted: 0, stateStartAgain: alreadyAvailable,
		stateOpaque: 77, stateStopped: 1, stateRestart: 0, stateThird: 1,
	})
	if f.word(stateAwake) == 0 {
		t.Error("no interrupt is pending after the suspension that it ended")
	}
}

// testRestart starts a vCPU again that is at work: it goes on elsewhere, and what it
// was doing is over.
func testRestart(t *testing.T, f *fixture) {
	f.runParallel("restart", 2)
	f.wantWords(map[uint64]uint64{stateThird: 1, stateOpaque: f.word(stateRestart)})
}
