package interp

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
	"github.com/forkd-dev/forkd/internal/riscv/riscvtest"
)

const hostileSteps = 3000

// hostile makes a machine whose memory is full of the given bytes.
func hostile(t testing.TB, code []byte, seed uint64) (*Machine, *hart.Hart) {
	m, h := newTestMachine(t, riscvtest.RAMBase, riscvtest.RAMSize)
	b := new(bus.Bus)
	m.Bus = b
	if err := b.Map(riscvtest.DeviceBase, riscvtest.DeviceSize, new(rigRegisters)); err != nil {
		t.Fatal(err)
	}
	riscvtest.Hostile(m.Memory, h, code, seed)
	h.Time = func() uint64 { return 12345 }
	return m, h
}

// execute runs some steps in slices.
func execute(t testing.TB, m *Machine, h *hart.Hart, slice int) {
	var c CPU
	c.Attach(m, h)
	for h.Retired < hostileSteps {
		before := h.Retired
		budget := min(slice, int(hostileSteps-h.Retired))
		event := c.Run(budget)
		if done := h.Retired - before; done > uint64(budget)+1 {
			t.Fatalf("a slice of %d executed %d instructions", budget, done)
		}
		if event == Failed {
			t.Fatalf("failed: %v", c.Err())
		}
		checkInvariants(t, h)
	}
}

func checkInvariants(t testing.TB, h *hart.Hart) {
	switch {
	case h.X[0] != 0:
		t.Fatalf("x0 is %#x", h.X[0])
	case h.PC&1 != 0:
		t.Fatalf("PC is odd: %#x", h.PC)
	case h.Mode > hart.Supervisor:
		t.Fatalf("mode is %d", h.Mode)
	}
}

// FuzzHostile executes random bytes as code in both modes, under random page
// tables. Nothing may panic or run away, and how the execution is cut into
// slices must not matter.
func FuzzHostile(f *testing.F) {
	seedHostile(f.Add)
	f.Fuzz(func(t *testing.T, code []byte, seed uint64) {
		testHostile(t, code, seed)
	})
}

func testHostile(t testing.TB, code []byte, seed uint64) {
	m1, h1 := hostile(t, code, seed)
	execute(t, m1, h1, hostileSteps)
	m2, h2 := hostile(t, code, seed)
	execute(t, m2, h2, 1+int(seed%97))
	h1.Time, h2.Time = nil, nil
	h1.X[hart.Discard], h2.X[hart.Discard] = 0, 0
	if h1.Retired != h2.Retired {
		// A trap may end a slice one instruction late, and then the runs end at
		// different places.
		return
	}
	for r := range h1.X {
		if h1.X[r] != h2.X[r] {
			t.Fatalf("x%d is %#x in one slice and %#x in many", r, h1.X[r], h2.X[r])
		}
	}
	if h1.PC != h2.PC || h1.F != h2.F || h1.Status != h2.Status {
		t.Fatalf("one slice ends at %#x, many at %#x", h1.PC, h2.PC)
	}
}

func seedHostile(add func(args ...any)) {
	rng := rand.New(rand.NewPCG(5, 6))
	for seed := range uint64(8) {
		// Whole instructions of all kinds, so that executions get somewhere.
		var code []byte
		for range 64 {
			op := isa.Op(1 + rng.IntN(int(isa.NumOps)-1))
			mask, bits := op.Pattern()
			code = binary.LittleEndian.AppendUint32(code, bits|rng.Uint32()&^mask)
			if rng.IntN(3) == 0 {
				code = binary.LittleEndian.AppendUint16(code, uint16(rng.Uint32()&^1))
			}
		}
		add(code, seed)
	}
	add([]byte{0xff, 0xff, 0xff, 0xff}, uint64(1))
	add([]byte{0x01, 0x00}, uint64(2))
	add([]byte{0x73, 0, 0, 0}, uint64(3))
}

// TestHostile is a longer fixed run of what FuzzHostile does.
func TestHostile(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		code := make([]byte, 16+rng.IntN(400))
		for i := range code {
			code[i] = byte(rng.Uint32())
		}
		for i := 0; i+4 <= len(code); i += 4 {
			if rng.IntN(4) != 0 {
				op := isa.Op(1 + rng.IntN(int(isa.NumOps)-1))
				mask, bits := op.Pattern()
				binary.LittleEndian.PutUint32(code[i:], bits|rng.Uint32()&^mask)
			}
		}
		testHostile(t, code, rng.Uint64())
	}
}
