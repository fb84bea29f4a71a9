package isa

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDisassembler compares with an independent disassembler, on random words:
// both must agree on which are instructions, and which.
func TestDisassembler(t *testing.T) {
	objdump, err := exec.LookPath("riscv64-linux-gnu-objdump")
	if err != nil {
		t.Skip("riscv64-linux-gnu-objdump is not installed (Debian package binutils-riscv64-linux-gnu)")
	}
	rng := rand.New(rand.NewPCG(10, 11))
	var words []uint32
	for range 20_000 {
		word := rng.Uint32() | 3
		if rng.IntN(4) != 0 {
			mask, bits := Op(1 + rng.IntN(int(NumOps)-1)).Pattern()
			word = bits | word&^mask
		}
		if word&0x1f == 0x1f {
			continue // longer than 32 bits
		}
		words = append(words, word)
	}
	text := disassemble(t, objdump, words)
	for i, word := range words {
		want := text[i]
		got := Decode(word).Op.String()
		if reserved(got) || reserved(want) || got == "illegal" && !known(want) {
			continue
		}
		// Ordering bits and rounding modes are part of the name there.
		name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(want, ".aqrl"), ".aq"), ".rl")
		if got != name {
			if rm := word >> 12 & 7; got == "illegal" && (rm == 5 || rm == 6) && want[0] == 'f' {
				continue // objdump shows reserved rounding modes
			}
			t.Errorf("%08x is %q, objdump says %q", word, got, want)
		}
	}
}

// reserved names what tools and manuals treat differently: FENCE with fields
// that are reserved, and unimplemented words.
func reserved(name string) bool {
	return strings.HasPrefix(name, "fence") || name == "pause" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "0x")
}

// known tells whether the set has an instruction of that name.
func known(name string) bool {
	for op := ILLEGAL + 1; op < NumOps; op++ {
		if op.String() == name {
			return true
		}
	}
	return false
}

var dumpLine = regexp.MustCompile(`^\s*[0-9a-f]+:\s+([0-9a-f]+)\s+(\S+)`)

func disassemble(t *testing.T, objdump string, words []uint32) []string {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	file := filepath.Join(t.TempDir(), "words")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(objdump, "-D", "-z", "-b", "binary", "-m", "riscv:rv64", "-M", "no-aliases", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range bytes.Lines(out) {
		if m := dumpLine.FindSubmatch(line); m != nil {
			names = append(names, string(m[2]))
		}
	}
	if len(names) != len(words) {
		t.Fatalf("objdump lists %d instructions, want %d", len(names), len(words))
	}
	return names
}
