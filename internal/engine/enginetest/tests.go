package enginetest

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/state"
)

func testStore(t *testing.T, f *fixture) {
	f.boot("store")
	f.run(engine.Off)
	want := []access{
		{0x20, 1, 0x08},
		{0x22, 2, 0x0708},
		{0x24, 4, 0x05060708},
		{0x28, 8, 0x0102030405060708},
	}
	if !slices.Equal(f.device.writes, want) {
		t.Errorf("device saw %v, want %v", f.device.writes, want)
	}
}

func testLoad(t *testing.T, f *fixture) {
	f.boot("load")
	f.run(engine.Off)
	f.wantLoaded()
}

// wantLoaded checks what the program "load" leaves.
func (f *fixture) wantLoaded() {
	f.t.Helper()
	for i, want := range []uint64{0xc8, 0x87d0, 0x858687d8, 0x81828384858687e0} {
		if got := f.word(uint64(8 * i)); got != want {
			f.t.Errorf("load of %d bytes gave %#x, want %#x", 1<<i, got, want)
		}
	}
	for i := 4; i < f.isa.loads; i++ { // of an access that is wider than a register
		at := uint64(8 * i)
		if got, want := f.word(at), 0x8182838485868788+regRead+at; got != want {
			f.t.Errorf("word %d of a wide load gave %#x, want %#x", i-4, got, want)
		}
	}
}

func testPowerOff(t *testing.T, f *fixture) {
	for program, want := range map[string]engine.Exit{"off": engine.Off, "reset": engine.Reset, "failed": engine.Failed} {
		f.boot(program)
		f.run(want)
	}
}

func testConsole(t *testing.T, f *fixture) {
	f.boot("console")
	f.run(engine.Off)
	if got := f.console.String(); got != "hi!" {
		t.Errorf("console has %q, want %q", got, "hi!")
	}
}

func testKickEarly(t *testing.T, f *fixture) {
	f.boot("spin")
	f.vm.VCPUs()[0].Kick()
	if exit := await(t, f.start()); exit != engine.Kicked {
		t.Errorf("Run after Kick returned %v", exit)
	}
}

func testKickLate(t *testing.T, f *fixture) {
	f.boot("count")
	done := f.begin()
	f.vm.VCPUs()[0].Kick()
	if exit := await(t, done); exit != engine.Kicked {
		t.Fatalf("Run returned %v", exit)
	}
	before := f.word(0)
	if before == 0 {
		t.Error("nothing was counted")
	}
	// It goes on where it was.
	if err := f.memory.PutUint64(f.isa.ramBase+dataOffset+8, 1); err != nil {
		t.Fatal(err)
	}
	f.run(engine.Off)
	if after := f.word(0); after < before || after > before+1 {
		t.Errorf("count went from %d to %d", before, after)
	}
}

func testKickWaiting(t *testing.T, f *fixture) {
	f.boot("wait")
	signals := f.device.signals()
	done := f.start()
	await(t, signals)
	f.vm.VCPUs()[0].Kick()
	if exit := await(t, done); exit != engine.Kicked {
		t.Errorf("Run returned %v", exit)
	}
}

func testKickTwice(t *testing.T, f *fixture) {
	f.boot("spin")
	v := f.vm.VCPUs()[0]
	v.Kick()
	v.Kick()
	if exit := await(t, f.start()); exit != engine.Kicked {
		t.Fatalf("Run returned %v", exit)
	}
	// The second kick may have been one with the first, so another must do.
	done := f.start()
	v.Kick()
	if exit := await(t, done); exit != engine.Kicked {
		t.Errorf("Run returned %v", exit)
	}
}

// testKickAtDevice kicks the vCPU in each access to the device, and goes on in another
// machine every time: none is made twice, and the guest gets its answers.
func testKickAtDevice(t *testing.T, f *fixture) {
	f.boot("load")
	reads := 0
	for {
		f.device.onRead = func() {
			reads++
			f.vm.VCPUs()[0].Kick()
		}
		exit, err := f.vm.VCPUs()[0].Run()
		if err != nil {
			t.Fatal(err)
		}
		if exit != engine.Kicked {
			break
		}
		if reads > f.isa.loads {
			t.Fatalf("the device was read %d times, want %d", reads, f.isa.loads)
		}
		f.make(nil, f.parse(f.save()))
	}
	f.wantLoaded()
	if reads != f.isa.loads {
		t.Errorf("the device was read %d times, want %d", reads, f.isa.loads)
	}
}

func testHalted(t *testing.T, f *fixture) {
	f.boot("halt")
	f.pauseWaiting()
	if !f.vm.Halted() {
		t.Error("a guest that waits with interrupts off has not halted")
	}
}

func testNotHalted(t *testing.T, f *fixture) {
	f.boot("interrupt")
	if f.vm.Halted() {
		t.Error("a guest that has not begun has halted")
	}
	f.pauseWaiting()
	if f.vm.Halted() {
		t.Error("a guest that waits for an interrupt has halted")
	}
}

// pauseWaiting runs a program until it has sent a signal and had time to wait.
func (f *fixture) pauseWaiting() {
	f.t.Helper()
	signals := f.device.signals()
	done := f.start()
	await(f.t, signals)
	time.Sleep(100 * time.Millisecond)
	f.vm.VCPUs()[0].Kick()
	if exit := await(f.t, done); exit != engine.Kicked {
		f.t.Fatalf("Run returned %v", exit)
	}
}

func testInterrupt(t *testing.T, f *fixture) {
	f.boot("interrupt")
	signals := f.device.signals()
	done := f.start()
	if got := await(t, signals); got != 0x100 {
		t.Fatalf("program signalled %#x first", got)
	}
	for range 3 {
		f.device.line.Set(true)
		if got := await(t, signals); got != uint64(f.isa.interrupt) {
			t.Fatalf("program claimed interrupt %d, want %d", got, f.isa.interrupt)
		}
	}
	if exit := await(t, done); exit != engine.Off {
		t.Errorf("Run returned %v", exit)
	}
}

func testInterruptPending(t *testing.T, f *fixture) {
	f.boot("masked")
	if exit := await(t, f.start()); exit != engine.Off {
		t.Fatalf("Run returned %v", exit)
	}
	if f.word(0) == 0 {
		t.Error("the interrupt is not pending after the wait that it ended")
	}
}

func testTimer(t *testing.T, f *fixture) {
	f.boot("timer")
	if exit := await(t, f.start()); exit != engine.Off {
		t.Fatalf("Run returned %v", exit)
	}
	if before, after := f.word(0), f.word(8); after < before+50_000 {
		t.Errorf("the timer woke the guest after %d ticks of 50000", after-before)
	}
	if f.word(16) == 0 {
		t.Error("the timer interrupt is not pending")
	}
}

// testTime: the guest's time counter follows the machine's clock, also in a machine that
// was made a while before it runs.
func testTime(t *testing.T, f *fixture) {
	const slack = time.Millisecond // of roundings, and of two clocks
	clock := func() time.Duration { return time.Since(f.started) }
	f.boot("time")
	before := clock()
	signals := f.device.signals()
	done := f.start()
	wantTime := func(what string) {
		t.Helper()
		ticks := await(t, signals)
		got, after := time.Duration(float64(ticks)/float64(f.word(8))*1e6), clock()
		if got < before-slack || got > after+slack {
			t.Errorf("%s the counter is %v, want %v to %v", what, got, before, after)
		}
	}
	wantTime("in a new machine")
	f.pause(done)
	// Neither is the saved state older, nor younger, than the counter that is in it.
	saved, vm := f.save(), f.vm
	if got := vm.Time(); got < before-slack || got > clock()+slack {
		t.Errorf("the time is said to be %v, want %v to %v", got, before, clock())
	}
	f.make(nil, f.parse(saved))
	time.Sleep(300 * time.Millisecond) // for which it is not executed
	before = clock()
	if err := f.memory.PutUint64(f.isa.ramBase+dataOffset, 1); err != nil {
		t.Fatal(err)
	}
	signals = f.device.signals()
	done = f.start()
	wantTime("in a machine of a saved state")
	f.pause(done)
}

func testPostOrder(t *testing.T, f *fixture) {
	f.boot("spin")
	const posters, each = 4, 200
	var order [posters][]int // written on the vCPU's goroutine only
	done := f.start()
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				f.vm.Post(func() { order[p] = append(order[p], i) })
			}
		})
	}
	wg.Wait()
	last := make(chan struct{})
	f.vm.Post(func() { close(last) })
	await(t, last)
	f.vm.VCPUs()[0].Kick()
	await(t, done)
	for p, got := range order {
		if len(got) != each || !slices.IsSorted(got) {
			t.Errorf("functions of poster %d ran as %v", p, got)
		}
	}
}

func testPostWakes(t *testing.T, f *fixture) {
	f.boot("wait")
	signals := f.device.signals()
	done := f.start()
	await(t, signals)
	ran := make(chan struct{})
	f.vm.Post(func() {
		f.vm.Post(func() { close(ran) }) // posted from a posted function
	})
	await(t, ran)
	continued := make(chan struct{})
	f.vm.Post(func() {
		f.vm.Continue(func() { close(continued) })
	})
	await(t, continued)
	f.vm.VCPUs()[0].Kick()
	await(t, done)
}

// testPostWriteIsSeen writes, while the guest polls, to a page that has not been
// written before, so that it moves under the guest's eyes.
func testPostWriteIsSeen(t *testing.T, f *fixture) {
	f.boot("poll")
	signals := f.device.signals()
	done := f.start()
	if got := await(t, signals); got != 0 {
		t.Fatalf("program read %d first", got)
	}
	f.vm.Post(func() {
		if err := f.memory.PutUint64(f.isa.ramBase+dataOffset, 42); err != nil {
			t.Error(err)
		}
	})
	if got := await(t, signals); got != 42 {
		t.Errorf("program read %d, want 42", got)
	}
	await(t, done)
}

// testDrain drains what posts itself again, as devices do that the guest has feed each
// other.
func testDrain(t *testing.T, f *fixture) {
	f.boot("spin")
	const enough = 1000
	var got []int
	var again func()
	again = func() {
		if got = append(got, 1); len(got) < enough {
			f.vm.Post(again)
		}
	}
	f.vm.Post(again)
	f.vm.Post(func() { got = append(got, 2) })
	for _, want := range [][]int{{1, 2}, {1, 2, 1}} {
		if f.vm.Drain(); !slices.Equal(got, want) {
			t.Fatalf("drained %v, want %v", got, want)
		}
	}
}

// pause kicks vCPU 0 out of Run.
func (f *fixture) pause(done <-chan engine.Exit) {
	f.t.Helper()
	f.vm.VCPUs()[0].Kick()
	if exit := await(f.t, done); exit != engine.Kicked {
		f.t.Fatalf("Run returned %v", exit)
	}
}

func testSaveLoad(t *testing.T, f *fixture) {
	f.boot("count")
	done := f.begin()
	f.pause(done)
	saved, count := f.save(), f.word(0)

	r := f.parse(saved)
	f.make(nil, r)
	if err := r.Done(); err != nil {
		t.Error(err)
	}
	if again := f.save(); !bytes.Equal(again, saved) {
		t.Error("saving what was just loaded gives other bytes")
	}
	f.memory.PutUint64(f.isa.ramBase+dataOffset+8, 1)
	f.run(engine.Off)
	if got := f.word(0); got < count || got > count+1 {
		t.Errorf("count went from %d to %d", count, got)
	}
	if bytes.Equal(f.save(), saved) {
		t.Error("the state is the same after executing")
	}
}

// testSaveWaiting saves a guest that waits, and has an interrupt wake the loaded
// one.
func testSaveWaiting(t *testing.T, f *fixture) {
	f.boot("interrupt")
	signals := f.device.signals()
	done := f.start()
	await(t, signals)
	f.pause(done)
	saved := f.save()

	r := f.parse(saved)
	f.make(nil, r)
	signals = f.device.signals()
	f.device.line.Set(true)
	done = f.start()
	if got := await(t, signals); got != uint64(f.isa.interrupt) {
		t.Errorf("program claimed interrupt %d", got)
	}
	f.pause(done)
}

func testLoadRefuses(t *testing.T, f *fixture) {
	f.boot("off")
	saved := f.save()
	stride := 1
	if len(saved) > 4<<10 {
		stride = len(saved) / 200
	}
	for i := 0; i < len(saved); i += stride {
		// One bit of each byte, or of some if there are many; the checksum is made
		// right again, so that the engine has to look.
		b := slices.Clone(saved)
		b[i] ^= 1 << (i % 8)
		r, err := state.Parse(rechecksum(b))
		if err != nil {
			continue
		}
		vm, err := f.engine.NewVM(engine.Config{
			Memory: f.memory, Bus: f.emptyBus(), VCPUs: 1, State: r,
			Clock: func() time.Duration { return 0 },
		})
		switch {
		case err == nil:
			vm.Close()
		case !errors.Is(err, state.ErrCorrupt):
			t.Errorf("byte %d: %v does not wrap state.ErrCorrupt", i, err)
		}
	}
	if _, err := f.engine.NewVM(engine.Config{
		Memory: f.memory, Bus: f.emptyBus(), VCPUs: 2, State: f.parse(saved),
		Clock: func() time.Duration { return 0 },
	}); err == nil {
		t.Error("a state of one vCPU was loaded into a machine of two")
	}
}

// testSeal seals memory under a paused machine: what the guest writes later goes
// to new pages, and the sealed ones stay as they were.
func testSeal(t *testing.T, f *fixture) {
	f.boot("count")
	done := f.begin()
	f.pause(done)
	stack := f.overlay.Seal()
	defer stack.Release()
	f.memory.Invalidate()
	count := f.word(0)

	for f.word(0) == count {
		done = f.start()
		time.Sleep(time.Millisecond)
		f.pause(done)
	}
	if f.overlay.Pages() == 0 {
		t.Error("what was written since is nowhere")
	}
	if got := leU64(stack.Get(dataOffset >> page.Shift)[:]); got != count {
		t.Errorf("the sealed page has %d, want %d", got, count)
	}
}

// testSealWhileWriting seals the memory of a guest that writes to page after page
// without pause, again and again, with what can be done ahead done ahead: each stack is
// of one instant, that of the state, and so a fork goes on from there.
func testSealWhileWriting(t *testing.T, f *fixture) {
	f.boot("sweep")
	done := f.begin()
	vm, overlay := f.vm, f.overlay
	resume := func() {
		f.vm, f.overlay = vm, overlay
		done = f.start()
	}
	last := uint64(0)
	for round := range 40 {
		time.Sleep(time.Millisecond) // the guest is anywhere by then
		if err := overlay.Prepare(); err != nil {
			t.Fatal(err)
		}
		f.pause(done)
		saved, parent := f.save(), f.memory
		stack := overlay.Seal()
		f.memory.Invalidate()
		first := wantSweep(t, func(n page.Number) *page.Page { return stack.Get(n) })
		if first < last {
			t.Errorf("the guest stored %d, and before that %d", first, last)
		}
		last = first
		if round%8 == 0 {
			f.newMemory(stack)
			f.make(nil, f.parse(saved))
			child := f.start()
			for f.sweepWord() < first+2 {
				time.Sleep(time.Millisecond)
			}
			f.pause(child)
			wantSweep(t, func(n page.Number) *page.Page { return f.overlay.Read(n) })
		}
		f.memory = parent
		stack.Release()
		resume()
	}
	f.pause(done)
}

// sweepWord returns what "sweep" has stored first, while it may store.
func (f *fixture) sweepWord() uint64 {
	got := make(chan uint64, 1)
	f.vm.Post(func() { got <- f.word(sharePages) })
	return await(f.t, got)
}

// wantSweep checks that pages are as "sweep" has them between two instructions: all up
// to one have a number, and those behind it the number before. It returns the first.
func wantSweep(t *testing.T, get func(page.Number) *page.Page) uint64 {
	t.Helper()
	const start = (dataOffset + sharePages) >> page.Shift
	first := leU64(get(start)[:])
	want := first
	for n := range page.Number(sweepPages) {
		got := leU64(get(start + n)[:])
		if got == first-1 {
			want = got
		}
		if got != want {
			t.Fatalf("page %d has %d, the first %d", n, got, first)
		}
	}
	return first
}

// testFork runs two children over one sealed stack: neither sees the other.
func testFork(t *testing.T, f *fixture) {
	f.boot("count")
	done := f.begin()
	f.pause(done)
	saved := f.save()
	stack := f.overlay.Seal()
	defer stack.Release()
	count := leU64(stack.Get(dataOffset >> page.Shift)[:])

	for child := uint64(1); child <= 2; child++ {
		f.newMemory(stack)
		f.make(nil, f.parse(saved))
		f.memory.PutUint64(f.isa.ramBase+dataOffset+8, child)
		f.run(engine.Off)
		if got := f.word(0); got < count || got > count+1 {
			t.Errorf("child %d counted from %d to %d", child, count, got)
		}
		if got := f.word(8); got != child {
			t.Errorf("child %d has the stop word %d", child, got)
		}
		if n := f.overlay.Pages(); n < 1 || n > f.isa.countPages {
			t.Errorf("child %d owns %d pages, want up to %d", child, n, f.isa.countPages)
		}
	}
	if got := leU64(stack.Get(dataOffset >> page.Shift)[:]); got != count {
		t.Errorf("the sealed count went from %d to %d", count, got)
	}
}

// testNoMemory has the guest touch more pages than it may own: Run fails, and
// goes on where it was once there is room.
func testNoMemory(t *testing.T, f *fixture) {
	f.quota = 8
	f.boot("touch-all")
	exit, err := f.vm.VCPUs()[0].Run()
	if !errors.Is(err, page.ErrQuota) {
		t.Fatalf("Run returned %v and error %v, want a page quota error", exit, err)
	}
	if got := f.overlay.Pages(); got != 8 {
		t.Errorf("guest owns %d pages", got)
	}
	stack := f.overlay.Seal() // whose pages count still
	defer stack.Release()
	f.memory.Invalidate()
	if _, err = f.vm.VCPUs()[0].Run(); !errors.Is(err, page.ErrQuota) {
		t.Fatalf("Run returned error %v the second time", err)
	}
	last := uint64(7) // pages of data: eight less the program's
	for i := range last {
		if want := f.isa.ramBase + dataOffset + i*page.Size; f.word(i*page.Size) != want {
			t.Errorf("page %d was not written", i)
		}
	}
}

func testSecondVCPU(t *testing.T, f *fixture) {
	f.vcpus = 2
	f.boot("two")
	second := f.vm.VCPUs()[1]
	stopped := make(chan engine.Exit, 1)
	go func() {
		exit, _ := second.Run()
		stopped <- exit
	}()
	if exit := await(t, f.start()); exit != engine.Off {
		t.Errorf("Run returned %v", exit)
	}
	second.Kick()
	await(t, stopped)
	if got := f.word(0); got != 2000 {
		t.Errorf("both vCPUs counted to %d, want 2000", got)
	}
}

func testConfig(t *testing.T, f *fixture) {
	f.boot("off")
	good := engine.Config{
		Memory: f.memory, Bus: f.emptyBus(), VCPUs: 1, Boot: &engine.Boot{Entry: f.isa.ramBase},
		Clock: func() time.Duration { return 0 },
	}
	for name, spoil := range map[string]func(*engine.Config){
		"no memory":        func(c *engine.Config) { c.Memory = nil },
		"no bus":           func(c *engine.Config) { c.Bus = nil },
		"no clock":         func(c *engine.Config) { c.Clock = nil },
		"no vCPU":          func(c *engine.Config) { c.VCPUs = 0 },
		"too many vCPUs":   func(c *engine.Config) { c.VCPUs = 1 << 20 },
		"nothing to run":   func(c *engine.Config) { c.Boot = nil },
		"boot and a state": func(c *engine.Config) { c.State = f.parse(f.save()) },
	} {
		bad := good
		spoil(&bad)
		if vm, err := f.engine.NewVM(bad); err == nil {
			vm.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}
