package amd64

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// assemble emits into a fresh buffer that is large enough.
func assemble(t *testing.T, base uintptr, emit func(*Asm)) []byte {
	t.Helper()
	var a Asm
	a.Reset(make([]byte, 0, 1<<12), base)
	emit(&a)
	if err := a.Finish(); err != nil {
		t.Fatal(err)
	}
	return a.Bytes()
}

// TestGolden has what the manuals say, and that the shortest form is taken.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name, want string
		emit       func(*Asm)
	}{
		{"add rax,rcx", "48 01 c8", func(a *Asm) { a.ALURR(ADD, W64, RAX, RCX) }},
		{"sub r8d,1", "41 83 e8 01", func(a *Asm) { a.ALURI(SUB, W32, R8, 1) }},
		{"and rdi,0x80", "48 81 e7 80 00 00 00", func(a *Asm) { a.ALURI(AND, W64, RDI, 0x80) }},
		{"cmp dx,0xffff", "66 83 fa ff", func(a *Asm) { a.ALURI(CMP, W16, RDX, 0xFFFF) }},
		{"xor sil,al", "40 30 c6", func(a *Asm) { a.ALURR(XOR, W8, RSI, RAX) }},
		{"not bl needs no rex", "f6 d3", func(a *Asm) { a.Not(W8, RBX) }},
		{"cmp byte [rbx],5 needs no rex", "80 3b 05", func(a *Asm) { a.ALUMI(CMP, W8, At(RBX, 0), 5) }},
		{"mov eax,0", "b8 00 00 00 00", func(a *Asm) { a.MovRI(RAX, 0) }},
		{"mov r9d,0xffffffff", "41 b9 ff ff ff ff", func(a *Asm) { a.MovRI(R9, 0xFFFFFFFF) }},
		{"mov rdx,-2", "48 c7 c2 fe ff ff ff", func(a *Asm) { a.MovRI(RDX, -2) }},
		{"movabs r15", "49 bf 08 07 06 05 04 03 02 01", func(a *Asm) { a.MovRI(R15, 0x0102030405060708) }},
		{"mov eax,[rcx]", "8b 01", func(a *Asm) { a.MovRM(W32, RAX, At(RCX, 0)) }},
		{"mov rax,[rsp]", "48 8b 04 24", func(a *Asm) { a.MovRM(W64, RAX, At(RSP, 0)) }},
		{"mov rax,[r12+8]", "49 8b 44 24 08", func(a *Asm) { a.MovRM(W64, RAX, At(R12, 8)) }},
		{"mov rax,[rbp]", "48 8b 45 00", func(a *Asm) { a.MovRM(W64, RAX, At(RBP, 0)) }},
		{"mov rax,[r13+rbx*4]", "49 8b 44 9d 00", func(a *Asm) { a.MovRM(W64, RAX, AtIndex(R13, RBX, 4, 0)) }},
		{"mov [rdi+r12*8-0x81],r10b", "46 88 94 e7 7f ff ff ff", func(a *Asm) { a.MovMR(W8, AtIndex(RDI, R12, 8, -0x81), R10) }},
		{"movzx eax,dil", "40 0f b6 c7", func(a *Asm) { a.MovZX(W8, RAX, RDI) }},
		{"movzx edi,byte [rax]", "0f b6 38", func(a *Asm) { a.MovZXM(W8, RDI, At(RAX, 0)) }},
		{"shl ecx,1", "d1 e1", func(a *Asm) { a.ShiftRI(SHL, W32, RCX, 1) }},
		{"shlx rax,rbx,rcx", "c4 e2 f1 f7 c3", func(a *Asm) { a.ShiftX(SHL, W64, RAX, RBX, RCX) }},
		{"rorx r9d,ebx,7", "c4 63 7b f0 cb 07", func(a *Asm) { a.Rorx(W32, R9, RBX, 7) }},
		{"popcnt r9w,ax", "66 f3 44 0f b8 c8", func(a *Asm) { a.Popcnt(W16, R9, RAX) }},
		{"lock xadd [rsi],r8", "f0 4c 0f c1 06", func(a *Asm) { a.LockXadd(W64, At(RSI, 0), R8) }},
		{"movsd xmm9,[rax]", "f2 44 0f 10 08", func(a *Asm) { a.MovsXM(true, X9, At(RAX, 0)) }},
		{"vfmadd231sd xmm1,xmm2,xmm3", "c4 e2 e9 b9 cb", func(a *Asm) { a.FMA(true, FMADD, X1, X2, X3) }},
		{"nop 1", "90", func(a *Asm) { a.Nop(1) }},
		{"nop 2", "66 90", func(a *Asm) { a.Nop(2) }},
		{"nop 11", "66 0f 1f 84 00 00 00 00 00 66 90", func(a *Asm) { a.Nop(11) }},
		{"nop 0", "", func(a *Asm) { a.Nop(0); a.Nop(-1) }},
		{"jmp back", "90 eb fd", func(a *Asm) { l := a.NewLabel(); a.Bind(l); a.Nop(1); a.Jmp(l) }},
		{"jmp ahead", "e9 01 00 00 00 90 c3", func(a *Asm) {
			l := a.NewLabel()
			a.Jmp(l)
			a.Nop(1)
			a.Bind(l)
			a.Ret()
		}},
		{"lea rcx,[rip]", "48 8d 0d 00 00 00 00 c3", func(a *Asm) {
			l := a.NewLabel()
			a.LeaLabel(RCX, l)
			a.Bind(l)
			a.Ret()
		}},
		{"jmp to", "90 e9 fa 0f 00 00", func(a *Asm) { a.Nop(1); a.JmpTo(0x5000_1000) }},
		{"jne to", "0f 85 fa ef ff ff", func(a *Asm) { a.JccTo(NE, 0x4FFF_F000) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := assemble(t, 0x5000_0000, c.emit); !bytes.Equal(got, want) {
				t.Errorf("got % x, want % x", got, want)
			}
		})
	}
}

// TestShortBranchReach finds the last distance that the short form reaches.
func TestShortBranchReach(t *testing.T) {
	for _, c := range []struct{ gap, jmp, jcc int }{{0, 2, 2}, {126, 2, 2}, {127, 5, 6}, {1000, 5, 6}} {
		var jmp, jcc int
		assemble(t, 0, func(a *Asm) {
			l := a.NewLabel()
			a.Bind(l)
			a.Nop(c.gap)
			a.Jmp(l)
			jmp = a.Len() - c.gap
		})
		assemble(t, 0, func(a *Asm) {
			l := a.NewLabel()
			a.Bind(l)
			a.Nop(c.gap)
			a.Jcc(LE, l)
			jcc = a.Len() - c.gap
		})
		if jmp != c.jmp || jcc != c.jcc {
			t.Errorf("over %d bytes: jmp has %d bytes and jcc %d, want %d and %d", c.gap, jmp, jcc, c.jmp, c.jcc)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		want error
		emit func(*Asm)
	}{
		{"unbound", ErrLabel, func(a *Asm) { a.Jmp(a.NewLabel()) }},
		{"unbound lea", ErrLabel, func(a *Asm) { a.LeaLabel(RAX, a.NewLabel()) }},
		{"bound twice", ErrLabel, func(a *Asm) { l := a.NewLabel(); a.Bind(l); a.Bind(l) }},
		{"unknown", ErrLabel, func(a *Asm) { a.Jcc(E, 7) }},
		{"negative", ErrLabel, func(a *Asm) { a.Bind(-1) }},
		{"too far ahead", ErrRange, func(a *Asm) { a.JmpTo(1<<31 + 5) }},
		{"too far back", ErrRange, func(a *Asm) { a.Reset(a.buf, 0xFFFF_0000); a.JccTo(E, 0) }},
		{"width 0", ErrOperand, func(a *Asm) { a.MovRR(0, RAX, RAX) }},
		{"width 3", ErrOperand, func(a *Asm) { a.ALURI(ADD, 3, RAX, 1) }},
		{"width 16", ErrOperand, func(a *Asm) { a.MovMI(16, At(RAX, 0), 1) }},
		{"byte lea", ErrOperand, func(a *Asm) { a.Lea(W8, RAX, At(RAX, 0)) }},
		{"byte cmov", ErrOperand, func(a *Asm) { a.Cmov(E, W8, RAX, RCX) }},
		{"byte imul", ErrOperand, func(a *Asm) { a.ImulRRI(W8, RAX, RCX, 3) }},
		{"byte bit test", ErrOperand, func(a *Asm) { a.BtsRI(W8, RAX, 3) }},
		{"byte popcnt", ErrOperand, func(a *Asm) { a.Popcnt(W8, RAX, RCX) }},
		{"word bswap", ErrOperand, func(a *Asm) { a.Bswap(W16, RAX) }},
		{"word shlx", ErrOperand, func(a *Asm) { a.ShiftX(SHL, W16, RAX, RCX, RDX) }},
		{"word rorx", ErrOperand, func(a *Asm) { a.Rorx(W16, RAX, RCX, 3) }},
		{"rolx", ErrOperand, func(a *Asm) { a.ShiftX(ROL, W64, RAX, RCX, RDX) }},
		{"word conversion", ErrOperand, func(a *Asm) { a.Cvtsi2s(true, W16, X0, RAX) }},
		{"lock cmp", ErrOperand, func(a *Asm) { a.LockALUMR(CMP, W64, At(RAX, 0), RCX) }},
		{"index rsp", ErrOperand, func(a *Asm) { a.MovRM(W64, RAX, AtIndex(RAX, RSP, 1, 0)) }},
		{"scale 3", ErrOperand, func(a *Asm) { a.MovRM(W64, RAX, AtIndex(RAX, RCX, 3, 0)) }},
		{"scale 16", ErrOperand, func(a *Asm) { a.MovRM(W64, RAX, AtIndex(RAX, RCX, 16, 0)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a Asm
			a.Reset(make([]byte, 256), 0)
			c.emit(&a)
			a.Ret()
			if err := a.Finish(); !errors.Is(err, c.want) {
				t.Errorf("Finish: %v, want %v", err, c.want)
			}
			a.Reset(a.buf, 0)
			a.Ret()
			if err := a.Finish(); err != nil {
				t.Errorf("after Reset: %v", err)
			}
		})
	}
}

// TestFit emits every form into a buffer that just holds it, with and without
// a first instruction, and into one that is a byte too small.
func TestFit(t *testing.T) {
	var big, a Asm
	room := make([]byte, 64)
	for _, f := range allForms() {
		big.Reset(make([]byte, 64), 0)
		big.Nop(3)
		f.emit(&big)
		want := big.Bytes()
		for _, limit := range []int{len(want), len(want) - 1, 3, 0} {
			for i := range room {
				room[i] = 0xAA
			}
			a.Reset(room[:0:limit], 0)
			a.Nop(3)
			f.emit(&a)
			fits := limit == len(want)
			if a.Overflow() == fits || errors.Is(a.Finish(), ErrOverflow) == fits {
				t.Fatalf("%s in %d bytes of %d: Overflow is %v, Finish %v", f.text, limit, len(want), a.Overflow(), a.Finish())
			}
			if !bytes.HasPrefix(want, a.Bytes()) || fits && a.Len() != len(want) {
				t.Fatalf("%s in %d bytes: % x, want % x", f.text, limit, a.Bytes(), want)
			}
			if bytes.Count(room[limit:], []byte{0xAA}) != len(room)-limit {
				t.Fatalf("%s in %d bytes wrote beyond it: % x", f.text, limit, room)
			}
		}
	}
}

// TestOverflowIsFinal: what would still fit after an overflow is not emitted.
func TestOverflowIsFinal(t *testing.T) {
	var a Asm
	a.Reset(make([]byte, 8), 0)
	a.Nop(4)
	l := a.NewLabel()
	a.Jmp(l)
	a.Ret()
	a.Bind(l)
	a.Ret()
	if a.Len() != 4 || !a.Overflow() || !errors.Is(a.Finish(), ErrOverflow) {
		t.Errorf("Len %d, Overflow %v, Finish %v", a.Len(), a.Overflow(), a.Finish())
	}
}

func TestZeroValue(t *testing.T) {
	var a Asm
	a.Ret()
	if a.Len() != 0 || !a.Overflow() {
		t.Errorf("Len %d, Overflow %v", a.Len(), a.Overflow())
	}
}

func TestOffset(t *testing.T) {
	assemble(t, 0, func(a *Asm) {
		l := a.NewLabel()
		if got := a.Offset(l); got != -1 {
			t.Errorf("unbound: %d, want -1", got)
		}
		a.Nop(5)
		a.Bind(l)
		if got := a.Offset(l); got != 5 {
			t.Errorf("bound: %d, want 5", got)
		}
		if got := a.Offset(l + 1); got != -1 {
			t.Errorf("unknown: %d, want -1", got)
		}
	})
}

// block is a typical piece of translated code: 16 instructions.
func block(a *Asm) {
	slow := a.NewLabel()
	a.MovRM(W64, RAX, At(RBX, 0x40))
	a.ALURI(ADD, W64, RAX, 0x10)
	a.MovRR(W64, RCX, RAX)
	a.ShiftRI(SHR, W64, RCX, 12)
	a.ALURI(AND, W32, RCX, 0x1FF)
	a.ShiftRI(SHL, W32, RCX, 4)
	a.Lea(W64, RCX, AtIndex(R14, RCX, 1, 0x200))
	a.MovRR(W64, RDX, RAX)
	a.ALURM(CMP, W64, RDX, At(RCX, 0))
	a.Jcc(NE, slow)
	a.ALURM(ADD, W64, RAX, At(RCX, 8))
	a.MovSXM(W32, R9, At(RAX, 0))
	a.MovMR(W64, At(RBX, 0x48), R9)
	a.MovRI(RAX, 0x12345678)
	a.Bind(slow)
	a.MovMR(W64, At(RBX, 0x100), RAX)
	a.Ret()
}

func TestNoAllocation(t *testing.T) {
	var a Asm
	buf := make([]byte, 4096)
	n := testing.AllocsPerRun(100, func() {
		a.Reset(buf, 0)
		block(&a)
		if err := a.Finish(); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a run, want none", n)
	}
}

func BenchmarkEmit(b *testing.B) {
	var a Asm
	buf := make([]byte, 1<<16)
	const blocks = 100
	for b.Loop() {
		a.Reset(buf, 0)
		for range blocks {
			block(&a)
		}
		if err := a.Finish(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(blocks*16), "ns/instr")
}
