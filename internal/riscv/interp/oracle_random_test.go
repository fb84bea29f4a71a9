package interp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/riscvtest"
)

// TestOracleSequences executes random sequences of all unprivileged
// instructions, compressed ones included, with memory accesses to a scratch area
// and forward branches.
func TestOracleSequences(t *testing.T) {
	programs := 12
	if testing.Short() {
		programs = 3
	}
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 3))
			testPrograms(t, rng, 120, func(c *riscvtest.Coder) { c.Straight(60) })
		})
	}
}

// TestOracleWords does the same with code as hash functions consist of.
func TestOracleWords(t *testing.T) {
	programs := 12
	if testing.Short() {
		programs = 3
	}
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 4))
			testPrograms(t, rng, 40, (*riscvtest.Coder).Rounds)
		})
	}
}

// TestOracleLoops does the same with loops, calls, computed jumps, and code that
// rewrites itself.
func TestOracleLoops(t *testing.T) {
	programs := 4
	if testing.Short() {
		programs = 1
	}
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 9))
			testPrograms(t, rng, 2, (*riscvtest.Coder).Loops)
		})
	}
}

// testPrograms executes pieces of random code one after the other, each from a
// state of its own, and compares the states that they leave.
func testPrograms(t *testing.T, rng *rand.Rand, n int, piece func(*riscvtest.Coder)) {
	p := riscvtest.NewProgram()
	for i := range riscvtest.ScratchSize {
		p.Data[i] = byte(rng.Uint32())
	}
	c := &riscvtest.Coder{Program: p, Rand: rng, Ops: slices.DeleteFunc(slices.Clone(riscvtest.Unprivileged), oracleWrong)}
	var listings []string
	at := uint32(riscvtest.ResultBase)
	for range n {
		p.PutState(at, func(i int) uint64 { return riscvtest.Word(rng, i) })
		p.LoadState(at)
		start := len(p.Code)
		piece(c)
		listings = append(listings, riscvtest.Listing(p.Code[start:], riscvtest.ImageBase+uint64(start)))
		p.SaveState(at)
		at += riscvtest.StateSize
	}
	finish(p)
	compare(t, p, func(offset int) string {
		if offset < riscvtest.ScratchSize {
			return fmt.Sprintf("scratch memory at %#x", offset)
		}
		i := offset - riscvtest.ScratchSize
		return fmt.Sprintf("word %d after piece %d:\n%s", i%riscvtest.StateSize/8, i/riscvtest.StateSize, listings[i/riscvtest.StateSize])
	})
}
