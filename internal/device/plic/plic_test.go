package plic

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/forkd-dev/forkd/internal/state"
)

// rig is a controller and the levels that it drives.
type rig struct {
	*PLIC
	mu     sync.Mutex
	levels []bool
}

func (r *rig) output(context int, level bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.levels[context] = level
}

func newRig(contexts int) *rig {
	r := &rig{levels: make([]bool, contexts)}
	r.PLIC = New(contexts, r.output)
	return r
}

const (
	threshold0 = contextBase
	claim0     = contextBase + 4
	claim1     = contextBase + contextSize + 4
)

// enable gives source n a priority and enables it for a context.
func (r *rig) enable(context, n int, priority uint64) {
	r.Write(uint64(4*n), 4, priority)
	at := enableBase + uint64(context)*enableStride + uint64(n/32*4)
	r.Write(at, 4, r.Read(at, 4)|1<<(n%32))
}

func TestClaimAndComplete(t *testing.T) {
	r := newRig(1)
	r.enable(0, 5, 1)
	line := r.Line(5)
	line.Set(true)
	if !r.levels[0] {
		t.Fatal("context is not raised")
	}
	if got := r.Read(pendingBase, 4); got != 1<<5 {
		t.Errorf("pending bits are %#x", got)
	}
	if got := r.Read(claim0, 4); got != 5 {
		t.Fatalf("claimed %d", got)
	}
	if r.levels[0] || r.Read(pendingBase, 4) != 0 {
		t.Error("still pending after the claim")
	}
	if got := r.Read(claim0, 4); got != 0 {
		t.Errorf("claimed %d with nothing pending", got)
	}
	// The line is still high: completion makes it pending again.
	if r.Write(claim0, 4, 5); !r.levels[0] {
		t.Error("a line that stays high is not pending after completion")
	}
	r.Read(claim0, 4)
	line.Set(false)
	if r.Write(claim0, 4, 5); r.levels[0] {
		t.Error("a line that fell is pending after completion")
	}
}

// TestGateway: a request that was forwarded stays although the line falls, and a
// pulse during service is not lost for being short, but not counted either.
func TestGateway(t *testing.T) {
	r := newRig(1)
	r.enable(0, 1, 1)
	line := r.Line(1)
	line.Set(true)
	line.Set(false)
	if got := r.Read(claim0, 4); got != 1 {
		t.Errorf("claimed %d after a short pulse, want 1", got)
	}
	line.Set(true)
	line.Set(false)
	if r.Write(claim0, 4, 1); r.levels[0] {
		t.Error("a level that came and went during service is pending")
	}
}

// TestPriorities (plic 4, 7): the highest wins, the lowest number among equals,
// and only what is above the threshold interrupts.
func TestPriorities(t *testing.T) {
	r := newRig(1)
	for n, priority := range map[int]uint64{10: 2, 11: 3, 12: 3, 40: 1, 50: 0} {
		r.enable(0, n, priority)
		r.Line(n).Set(true)
	}
	var order []uint64
	for {
		n := r.Read(claim0, 4)
		if n == 0 {
			break
		}
		order = append(order, n)
	}
	if want := []uint64{11, 12, 10, 40}; !slices.Equal(order, want) {
		t.Errorf("claimed in order %v, want %v", order, want)
	}

	r = newRig(1)
	r.enable(0, 3, 2)
	r.Write(threshold0, 4, 2)
	if r.Line(3).Set(true); r.levels[0] {
		t.Error("a source at the threshold interrupts")
	}
	if r.Write(threshold0, 4, 1); !r.levels[0] {
		t.Error("a source above the threshold does not interrupt")
	}
}

func TestContexts(t *testing.T) {
	r := newRig(2)
	r.enable(0, 7, 1)
	r.enable(1, 7, 1)
	r.enable(1, 33, 1)
	r.Line(33).Set(true)
	if r.levels[0] || !r.levels[1] {
		t.Errorf("levels %v for a source of context 1", r.levels)
	}
	r.Line(7).Set(true)
	if got := r.Read(claim0, 4); got != 7 {
		t.Errorf("context 0 claimed %d", got)
	}
	if got := r.Read(claim1, 4); got != 33 {
		t.Errorf("context 1 claimed %d after context 0 took 7", got)
	}
	// Completion through a context that has the source enabled counts.
	if r.Write(claim1, 4, 7); r.Read(claim0, 4) != 7 {
		t.Error("source 7 is not pending again after completion")
	}
	// Through one that has not, it does not (plic 9).
	if r.Write(claim0, 4, 33); r.Read(claim1, 4) != 0 {
		t.Error("completion by a context without the source counted")
	}
}

// TestInert: registers that do not exist, and widths that they do not have.
func TestInert(t *testing.T) {
	r := newRig(1)
	for _, offset := range []uint64{0, 4 * Sources, pendingBase + 8, enableBase + enableStride, enableBase + 8, contextBase + 8, contextBase + contextSize, Size - 4} {
		r.Write(offset, 4, ^uint64(0))
		if got := r.Read(offset, 4); got != 0 {
			t.Errorf("register at %#x reads %#x", offset, got)
		}
	}
	r.Write(4, 8, 3)
	r.Write(6, 2, 3)
	r.Write(5, 4, 3)
	if got := r.Read(4, 4); got != 0 {
		t.Errorf("a write of the wrong width set priority %d", got)
	}
	r.Write(4, 4, 0xff)
	if got := r.Read(4, 4); got != maxPriority {
		t.Errorf("priority 255 became %d", got)
	}
	if got := r.Read(4, 1); got != 0 {
		t.Errorf("a byte of a register reads %d", got)
	}
	r.Write(enableBase, 4, ^uint64(0))
	if got := r.Read(enableBase, 4); got != 0xffff_fffe {
		t.Errorf("enable bits are %#x, source 0 does not exist", got)
	}
	for _, n := range []int{-1, 0, Sources, 1 << 40} {
		r.Line(n).Set(true)
	}
	if r.levels[0] {
		t.Error("a source that does not exist interrupts")
	}
}

func save(p *PLIC) []byte {
	var w state.Writer
	p.Save(&w)
	return w.Bytes()
}

func restore(t *testing.T, b []byte, contexts int) (*rig, error) {
	t.Helper()
	r, err := state.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	got := &rig{levels: make([]bool, contexts)}
	got.PLIC, err = Restore(r, contexts, got.output)
	return got, err
}

func TestSaveRestore(t *testing.T) {
	r := newRig(2)
	r.enable(0, 5, 3)
	r.enable(1, 40, 7)
	r.enable(0, 41, 1)
	r.Write(threshold0, 4, 1)
	r.Line(5).Set(true)
	r.Read(claim0, 4)
	r.Line(40).Set(true)
	b := save(r.PLIC)
	got, err := restore(t, b, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(save(got.PLIC), b) {
		t.Error("saving what was restored gives other bytes")
	}
	if got.levels[0] || !got.levels[1] {
		t.Errorf("restored levels are %v", got.levels)
	}
	if got.Write(claim0, 4, 5); !got.levels[0] {
		t.Error("source 5, still high, is not pending after its completion")
	}
	if got.Read(claim1, 4); slices.Equal(save(got.PLIC), b) {
		t.Error("the state is the same after a claim")
	}
}

func TestRestoreRefuses(t *testing.T) {
	if _, err := restore(t, save(newRig(2).PLIC), 1); !errors.Is(err, state.ErrCorrupt) {
		t.Errorf("two contexts into one: %v", err)
	}
	for name, spoil := range map[string]func(*PLIC){
		"source 0":         func(p *PLIC) { p.pending = 1 },
		"priority":         func(p *PLIC) { p.priority[9] = 8 },
		"priority of 0":    func(p *PLIC) { p.priority[0] = 1 },
		"enabled source 0": func(p *PLIC) { p.contexts[0].enabled = 1 },
		"threshold":        func(p *PLIC) { p.contexts[0].threshold = 8 },
	} {
		r := newRig(1)
		spoil(r.PLIC)
		if _, err := restore(t, save(r.PLIC), 1); !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConcurrentLines sets lines from many goroutines while registers are used.
func TestConcurrentLines(t *testing.T) {
	r := newRig(1)
	var wg sync.WaitGroup
	for n := 1; n < 9; n++ {
		r.enable(0, n, 1)
		wg.Go(func() {
			for i := range 500 {
				r.Line(n).Set(i%2 == 0)
			}
		})
	}
	for range 500 {
		r.Write(claim0, 4, r.Read(claim0, 4))
	}
	wg.Wait()
	for n := r.Read(claim0, 4); n != 0; n = r.Read(claim0, 4) {
		r.Write(claim0, 4, n)
	}
	if r.levels[0] {
		t.Error("all lines are low and nothing is pending, but the context is raised")
	}
}

// FuzzRegisters makes random accesses; what results can be saved and restored.
func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0, 4, 7, 1, 0x20, 2, 0, 0, 3, 0x40, 0, 4, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		r := newRig(2)
		bases := []uint64{0, pendingBase, enableBase, enableBase + enableStride, contextBase, contextBase + contextSize, Size - 8, 0x1ffff8}
		for len(script) >= 4 {
			offset := bases[script[0]>>2%8] + uint64(script[1])
			width := 1 << (script[0] & 3)
			switch script[2] >> 6 {
			case 0:
				r.Write(offset, width, uint64(script[2])<<8|uint64(script[3]))
			case 1:
				if v := r.Read(offset, width); v>>32 != 0 {
					t.Fatalf("register at %#x reads %#x", offset, v)
				}
			default:
				r.Line(int(script[3]) - 10).Set(script[2]&1 != 0)
			}
			script = script[4:]
		}
		b := save(r.PLIC)
		got, err := restore(t, b, 2)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(save(got.PLIC), b) || !slices.Equal(got.levels, r.levels) {
			t.Fatal("what was restored is not what was saved")
		}
	})
}
