package interp

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

const (
	hostileSize  = 0x10_0000
	hostileSteps = 3000
)

// hostile makes a machine whose memory is full of the given bytes, as code, as
// data and as page tables, in a mode and with registers chosen by seed.
func hostile(t testing.TB, code []byte, seed uint64) (*Machine, *hart.Hart) {
	m, h := newTestMachine(t, rigBase, hostileSize)
	m.Bus = new(bus.Bus)
	if err := m.Bus.Map(rigDevice, 0x100, new(rigRegisters)); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 4))
	if len(code) == 0 {
		code = []byte{0}
	}
	for at := uint64(rigBase); at < rigBase+0x8000; at += uint64(len(code)) {
		if m.Memory.Write(at, code) != nil {
			break
		}
	}
	// Page tables: entries that lead into RAM, with random permission bits.
	for i := uint64(0); i < 3*512; i++ {
		pte := (rigBase+rng.Uint64N(hostileSize))>>12<<10 | rng.Uint64()&0xff | 1
		if i < 1024 {
			pte = (rigTables + 0x1000*(1+i/512) + 0x1000*rng.Uint64N(2)) >> 12 << 10
			pte |= []uint64{pteV, pteV, pteV, rng.Uint64() & 0x3ff}[rng.IntN(4)]
		}
		m.Memory.PutUint64(rigTables+8*i, pte)
	}
	for r := 1; r < hart.Discard; r++ {
		h.X[r] = []uint64{rng.Uint64(), rigBase + rng.Uint64N(hostileSize), rng.Uint64N(0x10000), rigDevice + rng.Uint64N(0x200), rigBase + 0xff8}[rng.IntN(5)]
		h.F[r] = rng.Uint64()
	}
	h.PC = rigBase + rng.Uint64N(0x4000)&^1
	h.WriteCSR(hart.CSRStvec, rigBase+rng.Uint64N(0x8000))
	h.WriteCSR(hart.CSRSstatus, rng.Uint64())
	h.WriteCSR(hart.CSRSie, rng.Uint64())
	if rng.IntN(2) == 0 {
		h.WriteCSR(hart.CSRSatp, 8<<60|rigTables>>12)
		h.PC = rng.Uint64() >> 25 &^ 1
	}
	h.Mode = hart.Mode(rng.IntN(2))
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
