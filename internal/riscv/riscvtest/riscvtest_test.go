package riscvtest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

func coder(seed uint64) *Coder {
	return &Coder{Program: NewProgram(), Rand: rand.New(rand.NewPCG(seed, 1))}
}

// decode calls f for each instruction of code.
func decode(code []byte, f func(at int, in isa.Inst)) {
	for at := 0; at+2 <= len(code); {
		raw := uint32(binary.LittleEndian.Uint16(code[at:]))
		if isa.Length(uint16(raw)) == 4 && at+4 <= len(code) {
			raw = binary.LittleEndian.Uint32(code[at:])
		}
		in := isa.Decode(raw)
		f(at, in)
		at += int(in.Size)
	}
}

// TestCodeIsRepeatable: the same seed gives the same program, another one
// another.
func TestCodeIsRepeatable(t *testing.T) {
	for name, piece := range map[string]func(*Coder){"loops": (*Coder).Loops, "straight": func(c *Coder) { c.Straight(100) }, "rounds": (*Coder).Rounds} {
		a, b, other := coder(1), coder(1), coder(2)
		piece(a)
		piece(b)
		piece(other)
		if !bytes.Equal(a.Code, b.Code) || bytes.Equal(a.Code, other.Code) {
			t.Errorf("%s: the code does not depend on the seed, or not only", name)
		}
	}
}

// TestCodeKeepsRegisters: no instruction that is drawn writes to a register on
// which the rest of a program relies.
func TestCodeKeepsRegisters(t *testing.T) {
	c := coder(3)
	c.Kept = []uint8{20}
	c.Straight(20_000)
	c.Words(5_000)
	seen := make(map[isa.Op]bool)
	decode(c.Code, func(at int, in isa.Inst) {
		seen[in.Op] = true
		switch rd, _, _ := in.Op.Float(); {
		case in.Op == isa.ILLEGAL:
			t.Fatalf("%#x: illegal instruction %v", at, in)
		case !rd && c.keeps(in.Rd):
			t.Fatalf("%#x: %v writes to a register that is kept", at, in)
		}
	})
	for _, op := range Unprivileged {
		if !seen[op] {
			t.Errorf("%v is never drawn", op)
		}
	}
}

// TestJumpsStayInside: all that code with loops jumps to is code.
func TestJumpsStayInside(t *testing.T) {
	for seed := range uint64(20) {
		c := coder(seed)
		c.Loops()
		starts := make(map[int]bool)
		decode(c.Code, func(at int, _ isa.Inst) { starts[at] = true })
		starts[len(c.Code)] = true
		decode(c.Code, func(at int, in isa.Inst) {
			if (in.Op == isa.JAL || in.Op >= isa.BEQ && in.Op <= isa.BGEU) && !starts[at+int(in.Imm)] {
				t.Errorf("seed %d: %#x: %v does not lead to an instruction", seed, at, in)
			}
		})
	}
}

// TestInstructions: most of what is made of random bytes is legal, and all of it
// has its length.
func TestInstructions(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 5))
	b := make([]byte, 40_003)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	legal, all := 0, 0
	decode(Instructions(b), func(_ int, in isa.Inst) {
		if all++; in.Op != isa.ILLEGAL {
			legal++
		}
	})
	if all < 9_000 || legal < all*3/4 {
		t.Errorf("%d instructions, %d of them legal", all, legal)
	}
	if code := Instructions([]byte{1, 2, 3}); len(code) != 0 {
		t.Errorf("three bytes make %x", code)
	}
}

// TestBytes: bytes come first, then a generator goes on.
func TestBytes(t *testing.T) {
	b := &Bytes{Left: []byte{1, 0, 0, 0, 0, 0, 0, 0, 2}}
	b.Seed(6, 7)
	first, second, third := b.Uint64(), b.Uint64(), b.Uint64()
	if first != 1 || second != 2 || third != rand.NewPCG(6, 7).Uint64() {
		t.Errorf("drew %#x, %#x, %#x", first, second, third)
	}
}
