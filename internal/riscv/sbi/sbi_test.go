package sbi

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
)

const ram = 0x8000_0000

// host records what it is asked for.
type host struct {
	interrupted []int
	started     []start
	fences      map[uint64][]Fence // by set of harts
}

type start struct {
	id            int
	entry, opaque uint64
}

func (h *host) Interrupt(id int)               { h.interrupted = append(h.interrupted, id) }
func (h *host) Fence(harts uint64, f Fence)    { h.fences[harts] = append(h.fences[harts], f) }
func (h *host) Start(id int, entry, op uint64) { h.started = append(h.started, start{id, entry, op}) }

// fixture is a firmware and the hart 0 that calls it, the only one that runs.
type fixture struct {
	*SBI
	hart *hart.Hart
}

func newSBI(t testing.TB, harts int) (fixture, *host, *bytes.Buffer) {
	stack := page.NewStack(16)
	overlay := page.NewOverlay(stack, page.NewArena(), 0)
	stack.Release()
	t.Cleanup(overlay.Close)
	mem, err := memory.NewSpace(memory.Slot{Base: ram, Pages: overlay})
	if err != nil {
		t.Fatal(err)
	}
	h, console := &host{fences: make(map[uint64][]Fence)}, new(bytes.Buffer)
	s := &SBI{Memory: mem, Console: console, Host: h, Stopped: make([]bool, harts)}
	for id := range harts {
		s.Stopped[id] = id > 0
	}
	return fixture{s, hart.New(0, func() uint64 { return 100 })}, h, console
}

// call makes a call from hart 0.
func call(s fixture, ext, fn uint64, args ...uint64) (st status, value uint64, out Outcome) {
	h := s.hart
	clear(h.X[10:18])
	copy(h.X[10:], args)
	h.X[16], h.X[17] = fn, ext
	out = s.Call(h)
	return status(h.X[10]), h.X[11], out
}

func TestBase(t *testing.T) {
	s, _, _ := newSBI(t, 1)
	if _, v, _ := call(s, extBase, 0); v != 0x0200_0000 {
		t.Errorf("specification version is %#x", v)
	}
	for ext, want := range map[uint64]uint64{extTime: 1, extIPI: 1, extRFence: 1, extHSM: 1, extSRST: 1, extDBCN: 1, extBase: 1, 0x504d55: 0, 0x53555350: 0} {
		if st, v, _ := call(s, extBase, 3, ext); st != success || v != want {
			t.Errorf("probing extension %#x gives %d (%d), want %d", ext, v, st, want)
		}
	}
}

// TestNotSupported (sbi 3): unknown extensions and functions say so and do
// nothing.
func TestNotSupported(t *testing.T) {
	s, h, console := newSBI(t, 2)
	for _, ext := range []uint64{extBase, extTime, extIPI, extRFence, extHSM, extSRST, extDBCN, 0x0, 0x8, 0xffff_ffff_ffff, 0x504d55} {
		st, v, out := call(s, ext, 77, 1, 0)
		if st != notSupported || v != 0 || out != Continue {
			t.Errorf("extension %#x function 77: status %d, value %d, outcome %d", ext, st, v, out)
		}
	}
	if len(h.interrupted)+len(h.started)+len(h.fences)+console.Len() != 0 {
		t.Error("something was done")
	}
}

func TestConsole(t *testing.T) {
	s, _, console := newSBI(t, 1)
	s.Memory.Write(ram+100, []byte("hello"))
	if st, n, _ := call(s, extDBCN, 0, 5, ram+100, 0); st != success || n != 5 {
		t.Errorf("write: status %d, %d bytes", st, n)
	}
	call(s, extDBCN, 2, '!'|0xff00)
	call(s, extLegacyPutchar, 0, '?')
	if got := console.String(); got != "hello!?" {
		t.Errorf("console has %q", got)
	}
	if st, n, _ := call(s, extDBCN, 1, 10, ram, 0); st != success || n != 0 {
		t.Errorf("read: status %d, %d bytes", st, n)
	}
	// A long buffer is written in part, and the caller told so.
	if st, n, _ := call(s, extDBCN, 0, 1<<40, ram, 0); st != success || n != maxPrint {
		t.Errorf("long write: status %d, %d bytes", st, n)
	}
	for name, args := range map[string][]uint64{
		"not RAM":        {1, 0x1000, 0},
		"across the end": {16, ram + 16*page.Size - 8, 0},
		"wrapping":       {16, ^uint64(0) - 4, 0},
		"upper half":     {1, ram, 1},
	} {
		if st, _, _ := call(s, extDBCN, 0, args...); st != invalidParam {
			t.Errorf("%s: status %d", name, st)
		}
	}
	s.Console = failing{}
	if st, _, _ := call(s, extDBCN, 0, 1, ram, 0); st != failed {
		t.Errorf("a console that fails: status %d", st)
	}
	s.Console = nil
	if st, n, _ := call(s, extDBCN, 0, 1, ram, 0); st != success || n != 1 {
		t.Errorf("no console: status %d", st)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestTimer(t *testing.T) {
	s, _, _ := newSBI(t, 1)
	h := s.hart
	h.WriteCSR(hart.CSRSie, hart.TimerInterrupt)
	if call(s, extTime, 0, 101); h.Wake() {
		t.Error("pending before its time")
	}
	if call(s, extTime, 0, 99); !h.Wake() {
		t.Error("not pending after its time")
	}
}

// TestMasks: which harts a mask and a first id name (sbi 3.1).
func TestMasks(t *testing.T) {
	for name, test := range map[string]struct {
		mask, first uint64
		want        []int
		status      status
	}{
		"one":             {1, 2, []int{2}, success},
		"two":             {5, 0, []int{0, 2}, success},
		"all":             {0, ^uint64(0), []int{0, 1, 2}, success},
		"none":            {0, 0, nil, success},
		"none of nobody":  {0, 70, nil, success},
		"too high":        {1, 3, nil, invalidParam},
		"partly too high": {3, 2, nil, invalidParam},
		"far":             {1, 1 << 62, nil, invalidParam},
		"bit 63":          {1 << 63, 0, nil, invalidParam},
	} {
		s, h, _ := newSBI(t, 3)
		st, _, _ := call(s, extIPI, 0, test.mask, test.first)
		if st != test.status || !slices.Equal(h.interrupted, test.want) {
			t.Errorf("%s: status %d, interrupted %v, want %d and %v", name, st, h.interrupted, test.status, test.want)
		}
	}
}

func TestRemoteFence(t *testing.T) {
	s, h, _ := newSBI(t, 2)
	for name, test := range map[string]struct {
		fn     uint64
		args   []uint64
		want   Fence
		status status
	}{
		"code":            {0, []uint64{2, 0}, Fence{Code: true}, success},
		"range":           {1, []uint64{2, 0, 0x1000, 0x2000}, Fence{Start: 0x1000, Size: 0x2000}, success},
		"everything":      {1, []uint64{2, 0, 0, 0}, Fence{}, success},
		"everything else": {1, []uint64{2, 0, 0x1000, ^uint64(0)}, Fence{}, success},
		"address space":   {2, []uint64{2, 0, 0, 0, 7}, Fence{ASID: 7, HasASID: true}, success},
		"to the end":      {1, []uint64{2, 0, ^uint64(0) - 99, 100}, Fence{Start: ^uint64(0) - 99, Size: 100}, success},
		"wrapping":        {1, []uint64{2, 0, ^uint64(0) - 10, 100}, Fence{}, invalidAddress},
		"nobody":          {1, []uint64{4, 0, 0, 0}, Fence{}, invalidParam},
		"hypervisor":      {3, []uint64{2, 0}, Fence{}, notSupported},
	} {
		clear(h.fences)
		st, _, _ := call(s, extRFence, test.fn, test.args...)
		if st != test.status {
			t.Errorf("%s: status %d, want %d", name, st, test.status)
		}
		if got := h.fences[2]; test.status == success && (len(got) != 1 || got[0] != test.want) {
			t.Errorf("%s: hart 1 got %+v, want %+v", name, got, test.want)
		} else if test.status != success && len(h.fences) != 0 {
			t.Errorf("%s: refused, but harts got %+v", name, h.fences)
		}
	}
}

func TestHartState(t *testing.T) {
	s, h, _ := newSBI(t, 2)
	state := func(id uint64) uint64 {
		_, v, _ := call(s, extHSM, 2, id)
		return v
	}
	if state(0) != 0 || state(1) != 1 {
		t.Errorf("states are %d and %d", state(0), state(1))
	}
	if st, _, _ := call(s, extHSM, 2, 2); st != invalidParam {
		t.Errorf("state of a hart that does not exist: status %d", st)
	}
	for name, test := range map[string]struct {
		id, entry uint64
		status    status
	}{
		"no such hart": {2, ram, invalidParam},
		"not RAM":      {1, 0x1000, invalidAddress},
		"odd":          {1, ram + 1, invalidAddress},
		"running":      {0, ram, alreadyAvailable},
	} {
		if st, _, _ := call(s, extHSM, 0, test.id, test.entry, 9); st != test.status {
			t.Errorf("%s: status %d, want %d", name, st, test.status)
		}
	}
	if st, _, _ := call(s, extHSM, 0, 1, ram+0x100, 9); st != success || !slices.Equal(h.started, []start{{1, ram + 0x100, 9}}) {
		t.Fatalf("status %d, started %+v", st, h.started)
	}
	if state(1) != 0 {
		t.Errorf("hart 1 is in state %d", state(1))
	}
	if st, _, _ := call(s, extHSM, 0, 1, ram, 0); st != alreadyAvailable {
		t.Errorf("starting it again: status %d", st)
	}
	if _, _, out := call(s, extHSM, 3, 0); out != Wait {
		t.Errorf("suspension: outcome %d", out)
	}
	if st, _, out := call(s, extHSM, 3, 0x8000_0000); st != invalidParam || out != Continue {
		t.Errorf("suspension that loses state: status %d, outcome %d", st, out)
	}
	if _, _, out := call(s, extHSM, 1); out != Stop || state(0) != 1 {
		t.Errorf("stop: outcome %d, state %d", out, state(0))
	}
}

func TestSystemReset(t *testing.T) {
	s, _, _ := newSBI(t, 1)
	for _, test := range []struct {
		kind, reason uint64
		out          Outcome
		status       status
	}{
		{0, 0, Off, success}, {0, 1, Failed, success}, {1, 0, Reset, success}, {2, 0, Reset, success}, {3, 0, Continue, invalidParam},
	} {
		if st, _, out := call(s, extSRST, 0, test.kind, test.reason); out != test.out || st != test.status {
			t.Errorf("reset %d for reason %d: outcome %d, status %d", test.kind, test.reason, out, st)
		}
	}
}

// FuzzCall makes calls with any numbers and arguments.
func FuzzCall(f *testing.F) {
	for _, ext := range []uint64{extLegacyPutchar, extBase, extTime, extIPI, extRFence, extHSM, extSRST, extDBCN} {
		f.Add(ext, uint64(0), uint64(1), uint64(0), uint64(0), uint64(0))
	}
	f.Fuzz(func(t *testing.T, ext, fn, a, b, c, d uint64) {
		s, _, _ := newSBI(t, 3)
		call(s, ext, fn, a, b, c, d)
		if s.hart.X[0] != 0 {
			t.Fatal("x0 was written")
		}
	})
}
