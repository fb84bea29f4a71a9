package isa

import (
	"bufio"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"
)

// golden calls check for each line of a golden file.
func golden(t *testing.T, name string, check func(section string, raw uint32, text string)) {
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), ";")
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			section = comment
			continue
		}
		word, text, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		raw, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		check(section, uint32(raw), text)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestGolden(t *testing.T) {
	seen := make(map[Op]bool)
	golden(t, "rv64.golden", func(section string, raw uint32, text string) {
		in := Decode(raw)
		seen[in.Op] = true
		if got := in.String(); got != text {
			t.Errorf("%s: %08x decodes to %q, want %q", section, raw, got, text)
		}
		if got := Encode(in); in.Op != FENCE && got != raw {
			t.Errorf("%s: %q encodes to %08x, want %08x", section, text, got, raw)
		}
	})
	for op := ILLEGAL + 1; op < NumOps; op++ {
		if !seen[op] {
			t.Errorf("no golden encoding of %v", op)
		}
	}
}

func TestGoldenCompressed(t *testing.T) {
	golden(t, "rvc.golden", func(_ string, raw uint32, text string) {
		in := Decode(raw | 0xdead_0000) // the upper half is another instruction's
		if got := in.String(); got != text || in.Size != 2 {
			t.Errorf("%04x decodes to %q of %d bytes, want %q", raw, got, in.Size, text)
		}
	})
}

// TestReserved: encodings that the manual reserves, and hints, which are legal
// and do nothing.
func TestReserved(t *testing.T) {
	for name, test := range map[string]struct {
		raw  uint32
		want Op
	}{
		"zero halfword":                  {0x0000, ILLEGAL},
		"c.addi4spn without immediate":   {0x0004, ILLEGAL},
		"c.addiw to x0":                  {0x2005, ILLEGAL},
		"c.addi16sp without immediate":   {0x6101, ILLEGAL},
		"c.lui without immediate":        {0x6501, ILLEGAL},
		"quadrant 1, funct6 100111 2":    {0x9c41, ILLEGAL},
		"quadrant 1, funct6 100111 3":    {0x9c61, ILLEGAL},
		"c.lwsp to x0":                   {0x4002, ILLEGAL},
		"c.ldsp to x0":                   {0x6002, ILLEGAL},
		"c.jr x0":                        {0x8002, ILLEGAL},
		"quadrant 0, funct3 100":         {0x8000, ILLEGAL},
		"hint: c.li x0":                  {0x4005, ADDI},
		"hint: c.lui x0":                 {0x6005, LUI},
		"hint: c.mv x0":                  {0x8006, ADD},
		"hint: c.slli x0":                {0x0006, SLLI},
		"hint: c.nop 1":                  {0x0005, ADDI},
		"shift amount of 64 for words":   {0x0200_101b, ILLEGAL},
		"rounding mode 5":                {0x0000_d053, ILLEGAL},
		"rounding mode 6":                {0x0000_e053, ILLEGAL},
		"lr with rs2":                    {0x1010_202f, ILLEGAL},
		"sret with rd":                   {0x1020_00f3, ILLEGAL},
		"mret":                           {0x3020_0073, ILLEGAL},
		"quad precision":                 {0x0600_0053, ILLEGAL},
		"48 bits and more":               {0x0000_001f, ILLEGAL},
		"fence with reserved fields":     {0x1230_8f8f, FENCE},
		"pause":                          {0x0100_000f, FENCE},
		"aq and rl":                      {0x0e05_302f, AMOSWAP_D},
		"cbo.clean is not in the set":    {0x0010_200f, ILLEGAL},
		"instruction of the V extension": {0x0000_0057, ILLEGAL},
	} {
		if got := Decode(test.raw); got.Op != test.want {
			t.Errorf("%s: %#x decodes to %v", name, test.raw, got)
		}
		if got := Decode(test.raw); got.Op == ILLEGAL && uint32(got.Imm) != test.raw {
			t.Errorf("%s: the bits of %#x are given as %#x", name, test.raw, uint32(got.Imm))
		}
	}
}

// TestPatternsAreDisjoint: no word is two instructions.
func TestPatternsAreDisjoint(t *testing.T) {
	for a := ILLEGAL + 1; a < NumOps; a++ {
		for b := a + 1; b < NumOps; b++ {
			x, y := table[a], table[b]
			if both := x.mask & y.mask; x.bits&both == y.bits&both {
				t.Errorf("%v and %v overlap", a, b)
			}
		}
		if table[a].bits&^table[a].mask != 0 {
			t.Errorf("%v has bits outside of its mask", a)
		}
	}
}

// TestEveryHalfword decodes all compressed encodings: what they expand to is
// itself an instruction.
func TestEveryHalfword(t *testing.T) {
	for h := range uint32(1 << 16) {
		if h&3 == 3 {
			continue
		}
		in := Decode(h)
		if in.Op == ILLEGAL {
			continue
		}
		wide := in
		wide.Size = 4
		if got := Decode(Encode(in)); got != wide {
			t.Fatalf("%04x expands to %v, which encodes and decodes to %v", h, in, got)
		}
	}
}

func TestNames(t *testing.T) {
	seen := make(map[string]Op)
	for op := ILLEGAL; op < NumOps; op++ {
		if other, twice := seen[op.String()]; twice || op.String() == "" {
			t.Errorf("operations %d and %d are both called %q", other, op, op)
		}
		seen[op.String()] = op
	}
	if got := Op(255).String(); got != "op(255)" {
		t.Errorf("an operation that does not exist is called %q", got)
	}
}

func TestAsm(t *testing.T) {
	a := NewAsm(0x1000)
	a.Label("start")
	a.LI(5, 0x7ff)
	a.B(BEQ, 5, 0, "end")
	a.J(1, "start")
	a.LA(6, "end")
	a.S(SD, 5, -8, 2)
	a.CSR(CSRRW, 0, 0x105, 6)
	a.Raw16(1)
	a.Label("end")
	a.Op(ECALL)
	var got []string
	code := a.Bytes()
	for i := 0; i < len(code); {
		in := Decode(binary.LittleEndian.Uint32(append(code[i:i+2:i+2], append(code[i+2:], 0, 0)...)))
		got = append(got, in.String())
		i += int(in.Size)
	}
	want := []string{
		"addi t0, zero, 2047", "beq t0, zero, .+26", "jal ra, .-8", "auipc t1, 0x0", "addi t1, t1, 18",
		"sd t0, -8(sp)", "csrrw zero, 0x105, t1", "addi zero, zero, 0", "ecall",
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("assembled\n%s\nwant\n%s", strings.Join(got, "; "), strings.Join(want, "; "))
	}
}

// TestAsmRefuses: mistakes in a program are found when it is assembled.
func TestAsmRefuses(t *testing.T) {
	for name, fn := range map[string]func(a *Asm){
		"immediate too large": func(a *Asm) { a.I(ADDI, 1, 1, 2048) },
		"no such label":       func(a *Asm) { a.J(0, "nowhere"); a.Bytes() },
		"label out of reach": func(a *Asm) {
			a.B(BEQ, 0, 0, "far")
			for range 2000 {
				a.Op(FENCE)
			}
			a.Label("far")
			a.Bytes()
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: accepted", name)
				}
			}()
			fn(NewAsm(0))
		}()
	}
}

// FuzzDecode: any bits decode without panic, disassemble, and mean the same
// after encoding.
func FuzzDecode(f *testing.F) {
	for op := ILLEGAL; op < NumOps; op++ {
		f.Add(table[op].bits)
	}
	f.Add(uint32(0x4501))
	f.Fuzz(func(t *testing.T, raw uint32) {
		in := Decode(raw)
		if in.Rd > 31 || in.Rs1 > 31 || in.Rs2 > 31 || in.Rs3 > 31 || in.Op >= NumOps || in.Size != uint8(Length(uint16(raw))) {
			t.Fatalf("%08x decodes to %+v", raw, in)
		}
		if in.String() == "" {
			t.Fatalf("%08x has no text", raw)
		}
		if in.Op == ILLEGAL {
			return
		}
		wide := in
		wide.Size = 4
		if got := Decode(Encode(in)); got != wide {
			t.Fatalf("%08x is %v, which encodes and decodes to %v", raw, in, got)
		}
	})
}
