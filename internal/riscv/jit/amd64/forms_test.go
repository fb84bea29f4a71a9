package amd64

import (
	"fmt"
	"slices"
	"strings"
)

var (
	gpNames = map[Width][]string{
		W8:  strings.Fields("al cl dl bl spl bpl sil dil r8b r9b r10b r11b r12b r13b r14b r15b"),
		W16: strings.Fields("ax cx dx bx sp bp si di r8w r9w r10w r11w r12w r13w r14w r15w"),
		W32: strings.Fields("eax ecx edx ebx esp ebp esi edi r8d r9d r10d r11d r12d r13d r14d r15d"),
		W64: strings.Fields("rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15"),
	}
	condNames  = strings.Fields("o no b ae e ne be a s ns p np l ge le g")
	aluNames   = strings.Fields("add or adc sbb and sub xor cmp")
	shiftNames = map[Shift]string{ROL: "rol", ROR: "ror", SHL: "shl", SHR: "shr", SAR: "sar"}
	ptrNames   = map[Width]string{W8: "BYTE", W16: "WORD", W32: "DWORD", W64: "QWORD"}

	anyWidth = []Width{W8, W16, W32, W64}
	noByte   = []Width{W16, W32, W64}
	fullSize = []Width{W32, W64}

	disps = []int32{0, 1, -1, 127, 128, -128, -129, 0x12345678, -0x12345678, -1 << 31, 1<<31 - 1}
	imms  = []int32{0, 1, -1, 127, 128, -128, -129, 0x7FFF, 0x8000, 0xFFFF, 0x12345678, -1 << 31, 1<<31 - 1}
)

func gp(w Width, r Reg) string { return gpNames[w][r] }

func xmm(x XReg) string { return fmt.Sprintf("xmm%d", x) }

// signed is v with its sign, in hexadecimal.
func signed(v int32) string {
	if v < 0 {
		return fmt.Sprintf("-0x%x", -int64(v))
	}
	return fmt.Sprintf("+0x%x", v)
}

// immText is an immediate extended to w, as a number without sign.
func immText(w Width, v int64) string {
	if w == W64 {
		return fmt.Sprintf("0x%x", uint64(v))
	}
	return fmt.Sprintf("0x%x", uint64(v)&(1<<(8*w)-1))
}

func addr(m Mem) string {
	s := gp(W64, m.Base)
	if m.Scale != 0 {
		s += fmt.Sprintf("+%s*%d", gp(W64, m.Index), m.Scale)
	}
	// These two bases have no form without displacement.
	if m.Disp != 0 || m.Base == RBP || m.Base == R13 {
		s += signed(m.Disp)
	}
	return "[" + s + "]"
}

func ptr(w Width, m Mem) string { return ptrNames[w] + " PTR " + addr(m) }

func fwidth(double bool) (Width, string) {
	if double {
		return W64, "sd"
	}
	return W32, "ss"
}

// someMems has each kind of address: all bases, and indices from both halves.
func someMems() []Mem {
	var ms []Mem
	for b := RAX; b <= R15; b++ {
		ms = append(ms, At(b, 0), At(b, -8), At(b, 0x1000), AtIndex(b, R15-b|1, 8, 4))
	}
	return ms
}

type forms []form

func (f *forms) add(emit func(*Asm), format string, args ...any) {
	*f = append(*f, form{fmt.Sprintf(format, args...), emit})
}

// regs calls fn for all the registers.
func regs(fn func(r Reg)) {
	for r := RAX; r <= R15; r++ {
		fn(r)
	}
}

// rr adds name for all pairs of registers and the widths ws.
func (f *forms) rr(name string, ws []Width, emit func(*Asm, Width, Reg, Reg)) {
	for _, w := range ws {
		regs(func(d Reg) {
			regs(func(s Reg) {
				f.add(func(a *Asm) { emit(a, w, d, s) }, "%s %s,%s", name, gp(w, d), gp(w, s))
			})
		})
	}
}

// r adds name for all registers and the widths ws.
func (f *forms) r(name string, ws []Width, suffix string, emit func(*Asm, Width, Reg)) {
	for _, w := range ws {
		regs(func(r Reg) { f.add(func(a *Asm) { emit(a, w, r) }, "%s %s%s", name, gp(w, r), suffix) })
	}
}

// rm adds name for registers with memory, mr the reverse.
func (f *forms) rm(name string, ws []Width, emit func(*Asm, Width, Reg, Mem)) {
	for _, w := range ws {
		for i, m := range someMems() {
			for _, r := range []Reg{RAX, Reg(i & 15), Reg(i*7&15) ^ 4} {
				f.add(func(a *Asm) { emit(a, w, r, m) }, "%s %s,%s", name, gp(w, r), ptr(w, m))
			}
		}
	}
}

func (f *forms) mr(name string, ws []Width, emit func(*Asm, Width, Mem, Reg)) {
	for _, w := range ws {
		for i, m := range someMems() {
			for _, r := range []Reg{RAX, Reg(i & 15), Reg(i*7&15) ^ 4} {
				f.add(func(a *Asm) { emit(a, w, m, r) }, "%s %s,%s", name, ptr(w, m), gp(w, r))
			}
		}
	}
}

// ri adds name for all registers with immediates, mi for memory.
func (f *forms) ri(name string, emit func(*Asm, Width, Reg, int32)) {
	for _, w := range anyWidth {
		regs(func(r Reg) {
			for _, v := range imms {
				f.add(func(a *Asm) { emit(a, w, r, v) }, "%s %s,%s", name, gp(w, r), immText(w, int64(v)))
			}
		})
	}
}

func (f *forms) mi(name string, emit func(*Asm, Width, Mem, int32)) {
	for _, w := range anyWidth {
		for _, m := range someMems() {
			for _, v := range imms {
				f.add(func(a *Asm) { emit(a, w, m, v) }, "%s %s,%s", name, ptr(w, m), immText(w, int64(v)))
			}
		}
	}
}

// xx adds name for all pairs of SSE registers, xm for one with memory.
func (f *forms) xx(name string, emit func(*Asm, XReg, XReg)) {
	for d := X0; d <= X15; d++ {
		for s := X0; s <= X15; s++ {
			f.add(func(a *Asm) { emit(a, d, s) }, "%s %s,%s", name, xmm(d), xmm(s))
		}
	}
}

func (f *forms) xm(name string, w Width, emit func(*Asm, XReg, Mem)) {
	for i, m := range someMems() {
		for _, x := range []XReg{X0, XReg(i & 15), XReg(i*7&15) ^ 4} {
			f.add(func(a *Asm) { emit(a, x, m) }, "%s %s,%s", name, xmm(x), ptr(w, m))
		}
	}
}

// xr adds name for all pairs of an SSE and a general register, rx the reverse.
func (f *forms) xr(name string, w Width, emit func(*Asm, XReg, Reg)) {
	for x := X0; x <= X15; x++ {
		regs(func(r Reg) { f.add(func(a *Asm) { emit(a, x, r) }, "%s %s,%s", name, xmm(x), gp(w, r)) })
	}
}

func (f *forms) rx(name string, w Width, emit func(*Asm, Reg, XReg)) {
	for x := X0; x <= X15; x++ {
		regs(func(r Reg) { f.add(func(a *Asm) { emit(a, r, x) }, "%s %s,%s", name, gp(w, r), xmm(x)) })
	}
}

// allForms has every method but the branches to labels and addresses.
func allForms() []form {
	var f forms
	f.addresses()
	f.alu()
	f.moves()
	f.shifts()
	f.arithmetic()
	f.bits()
	f.control()
	f.floats()
	return slices.Clip(f)
}

// addresses has all of bases, indices, scales and kinds of displacement.
func (f *forms) addresses() {
	regs(func(b Reg) {
		for _, d := range disps {
			ms := []Mem{At(b, d)}
			regs(func(x Reg) {
				if x != RSP {
					ms = append(ms, AtIndex(b, x, 1, d), AtIndex(b, x, 2, d), AtIndex(b, x, 4, d), AtIndex(b, x, 8, d))
				}
			})
			for _, m := range ms {
				r := b ^ m.Index ^ 8
				f.add(func(a *Asm) { a.Lea(W64, r, m) }, "lea %s,%s", gp(W64, r), addr(m))
			}
		}
	})
	for _, w := range noByte {
		for _, m := range someMems() {
			f.add(func(a *Asm) { a.Lea(w, m.Base, m) }, "lea %s,%s", gp(w, m.Base), addr(m))
		}
	}
}

func (f *forms) alu() {
	for op := ADD; op <= CMP; op++ {
		name := aluNames[op]
		f.rr(name, anyWidth, func(a *Asm, w Width, d, s Reg) { a.ALURR(op, w, d, s) })
		f.rm(name, anyWidth, func(a *Asm, w Width, d Reg, m Mem) { a.ALURM(op, w, d, m) })
		f.mr(name, anyWidth, func(a *Asm, w Width, m Mem, s Reg) { a.ALUMR(op, w, m, s) })
		f.ri(name, func(a *Asm, w Width, r Reg, v int32) { a.ALURI(op, w, r, v) })
		f.mi(name, func(a *Asm, w Width, m Mem, v int32) { a.ALUMI(op, w, m, v) })
		if op != CMP {
			f.mr("lock "+name, anyWidth, func(a *Asm, w Width, m Mem, s Reg) { a.LockALUMR(op, w, m, s) })
		}
	}
	f.rr("test", anyWidth, (*Asm).TestRR)
	f.ri("test", (*Asm).TestRI)
	f.mi("test", (*Asm).TestMI)
}

func (f *forms) moves() {
	f.rr("mov", anyWidth, (*Asm).MovRR)
	f.rm("mov", anyWidth, (*Asm).MovRM)
	f.mr("mov", anyWidth, (*Asm).MovMR)
	f.mi("mov", (*Asm).MovMI)
	regs(func(r Reg) {
		for _, v := range []int64{0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF} {
			f.add(func(a *Asm) { a.MovRI(r, v) }, "mov %s,0x%x", gp(W32, r), v)
		}
		for _, v := range []int64{-1, -0x80000000} {
			f.add(func(a *Asm) { a.MovRI(r, v) }, "mov %s,0x%x", gp(W64, r), uint64(v))
		}
		for _, v := range []int64{-0x80000001, 0x100000000, 0x123456789ABCDEF0, -1 << 63, 1<<63 - 1} {
			f.add(func(a *Asm) { a.MovRI(r, v) }, "movabs %s,0x%x", gp(W64, r), uint64(v))
		}
	})
	for _, e := range []struct {
		name     string
		from, to Width
		rr       func(*Asm, Width, Reg, Reg)
		rm       func(*Asm, Width, Reg, Mem)
	}{
		{"movzx", W8, W32, (*Asm).MovZX, (*Asm).MovZXM},
		{"movzx", W16, W32, (*Asm).MovZX, (*Asm).MovZXM},
		{"mov", W32, W32, (*Asm).MovZX, (*Asm).MovZXM},
		{"mov", W64, W64, (*Asm).MovZX, (*Asm).MovZXM},
		{"movsx", W8, W64, (*Asm).MovSX, (*Asm).MovSXM},
		{"movsx", W16, W64, (*Asm).MovSX, (*Asm).MovSXM},
		{"movsxd", W32, W64, (*Asm).MovSX, (*Asm).MovSXM},
		{"mov", W64, W64, (*Asm).MovSX, (*Asm).MovSXM},
	} {
		regs(func(d Reg) {
			regs(func(s Reg) {
				f.add(func(a *Asm) { e.rr(a, e.from, d, s) }, "%s %s,%s", e.name, gp(e.to, d), gp(e.from, s))
			})
			for _, m := range someMems() {
				f.add(func(a *Asm) { e.rm(a, e.from, d, m) }, "%s %s,%s", e.name, gp(e.to, d), ptr(e.from, m))
			}
		})
	}
	f.mr("xchg", anyWidth, (*Asm).XchgMR)
	f.mr("lock xadd", anyWidth, (*Asm).LockXadd)
	f.mr("lock cmpxchg", anyWidth, (*Asm).LockCmpxchg)
}

func (f *forms) shifts() {
	for op, name := range shiftNames {
		for _, n := range []uint8{0, 1, 2, 31, 63} {
			count := fmt.Sprintf(",0x%x", n)
			if n == 1 {
				count = ",1"
			}
			f.r(name, anyWidth, count, func(a *Asm, w Width, r Reg) { a.ShiftRI(op, w, r, n) })
			for _, w := range anyWidth {
				for _, m := range someMems() {
					f.add(func(a *Asm) { a.ShiftMI(op, w, m, n) }, "%s %s%s", name, ptr(w, m), count)
				}
			}
		}
		f.r(name, anyWidth, ",cl", func(a *Asm, w Width, r Reg) { a.ShiftRCL(op, w, r) })
	}
	for _, op := range []Shift{SHL, SHR, SAR} {
		f.rrr(shiftNames[op]+"x", func(a *Asm, w Width, d, s, c Reg) { a.ShiftX(op, w, d, s, c) })
	}
	f.rrr("andn", (*Asm).Andn)
	for _, w := range fullSize {
		regs(func(d Reg) {
			regs(func(s Reg) {
				f.add(func(a *Asm) { a.Rorx(w, d, s, 25) }, "rorx %s,%s,0x19", gp(w, d), gp(w, s))
			})
		})
	}
}

// rrr adds name for triples of registers that differ in their high bits.
func (f *forms) rrr(name string, emit func(*Asm, Width, Reg, Reg, Reg)) {
	for _, w := range fullSize {
		regs(func(d Reg) {
			regs(func(s Reg) {
				for _, c := range []Reg{RCX, s ^ 8, R14} {
					f.add(func(a *Asm) { emit(a, w, d, s, c) }, "%s %s,%s,%s", name, gp(w, d), gp(w, s), gp(w, c))
				}
			})
		})
	}
}

func (f *forms) arithmetic() {
	f.rr("imul", noByte, (*Asm).ImulRR)
	f.rm("imul", noByte, (*Asm).ImulRM)
	for _, w := range noByte {
		regs(func(d Reg) {
			for _, v := range imms {
				s := (d*5 + 3) & 15
				f.add(func(a *Asm) { a.ImulRRI(w, d, s, v) }, "imul %s,%s,%s", gp(w, d), gp(w, s), immText(w, int64(v)))
			}
		})
	}
	f.r("mul", anyWidth, "", (*Asm).Mul)
	f.r("imul", anyWidth, "", (*Asm).Imul)
	f.r("div", anyWidth, "", (*Asm).Div)
	f.r("idiv", anyWidth, "", (*Asm).Idiv)
	f.r("neg", anyWidth, "", (*Asm).Neg)
	f.r("not", anyWidth, "", (*Asm).Not)
	f.r("bswap", fullSize, "", (*Asm).Bswap)
	f.rr("lzcnt", noByte, (*Asm).Lzcnt)
	f.rr("tzcnt", noByte, (*Asm).Tzcnt)
	f.rr("popcnt", noByte, (*Asm).Popcnt)
	f.add((*Asm).Cqo, "cqo")
	f.add((*Asm).Cdq, "cdq")
}

func (f *forms) bits() {
	f.rr("bt", noByte, (*Asm).BtRR)
	f.rr("bts", noByte, (*Asm).BtsRR)
	f.rr("btr", noByte, (*Asm).BtrRR)
	f.rr("btc", noByte, (*Asm).BtcRR)
	for _, n := range []uint8{0, 7, 63} {
		suffix := fmt.Sprintf(",0x%x", n)
		f.r("bt", noByte, suffix, func(a *Asm, w Width, r Reg) { a.BtRI(w, r, n) })
		f.r("bts", noByte, suffix, func(a *Asm, w Width, r Reg) { a.BtsRI(w, r, n) })
		f.r("btr", noByte, suffix, func(a *Asm, w Width, r Reg) { a.BtrRI(w, r, n) })
		f.r("btc", noByte, suffix, func(a *Asm, w Width, r Reg) { a.BtcRI(w, r, n) })
	}
	for c := O; c <= G; c++ {
		f.r("set"+condNames[c], []Width{W8}, "", func(a *Asm, _ Width, r Reg) { a.Setcc(c, r) })
		f.rr("cmov"+condNames[c], noByte, func(a *Asm, w Width, d, s Reg) { a.Cmov(c, w, d, s) })
		f.rm("cmov"+condNames[c], noByte, func(a *Asm, w Width, d Reg, m Mem) { a.CmovM(c, w, d, m) })
	}
}

func (f *forms) control() {
	f.r("jmp", []Width{W64}, "", func(a *Asm, _ Width, r Reg) { a.JmpR(r) })
	f.r("call", []Width{W64}, "", func(a *Asm, _ Width, r Reg) { a.CallR(r) })
	for _, m := range someMems() {
		f.add(func(a *Asm) { a.JmpM(m) }, "jmp %s", ptr(W64, m))
		f.add(func(a *Asm) { a.Ldmxcsr(m) }, "ldmxcsr %s", ptr(W32, m))
		f.add(func(a *Asm) { a.Stmxcsr(m) }, "stmxcsr %s", ptr(W32, m))
	}
	f.add((*Asm).Ret, "ret")
	f.add((*Asm).Mfence, "mfence")
	f.add((*Asm).Pause, "pause")
	f.add((*Asm).Int3, "int3")
}

func (f *forms) floats() {
	for _, double := range []bool{false, true} {
		w, s := fwidth(double)
		f.xm("mov"+s, w, func(a *Asm, x XReg, m Mem) { a.MovsXM(double, x, m) })
		for i, m := range someMems() {
			x := XReg(i*7&15) ^ 4
			f.add(func(a *Asm) { a.MovsMX(double, m, x) }, "mov%s %s,%s", s, ptr(w, m), xmm(x))
		}
		for op, name := range map[FOp]string{FADD: "add", FMUL: "mul", FSUB: "sub", FDIV: "div", FSQRT: "sqrt"} {
			f.xx(name+s, func(a *Asm, d, x XReg) { a.FRR(op, double, d, x) })
			f.xm(name+s, w, func(a *Asm, d XReg, m Mem) { a.FRM(op, double, d, m) })
		}
		f.xx("ucomi"+s, func(a *Asm, x, y XReg) { a.UcomisXX(double, x, y) })
		f.xm("ucomi"+s, w, func(a *Asm, x XReg, m Mem) { a.UcomisXM(double, x, m) })
		f.xx("comi"+s, func(a *Asm, x, y XReg) { a.ComisXX(double, x, y) })
		f.xm("comi"+s, w, func(a *Asm, x XReg, m Mem) { a.ComisXM(double, x, m) })
		for _, iw := range fullSize {
			f.xr("cvtsi2"+s, iw, func(a *Asm, x XReg, r Reg) { a.Cvtsi2s(double, iw, x, r) })
			f.rx("cvtt"+s+"2si", iw, func(a *Asm, r Reg, x XReg) { a.Cvtts2si(double, iw, r, x) })
			f.rx("cvt"+s+"2si", iw, func(a *Asm, r Reg, x XReg) { a.Cvts2si(double, iw, r, x) })
		}
		f.fma(double, s)
	}
	f.xx("movaps", (*Asm).MovXX)
	f.xr("movq", W64, (*Asm).MovqXR)
	f.rx("movq", W64, (*Asm).MovqRX)
	f.xr("movd", W32, (*Asm).MovdXR)
	f.rx("movd", W32, (*Asm).MovdRX)
	f.xx("cvtss2sd", (*Asm).Cvtss2sd)
	f.xx("cvtsd2ss", (*Asm).Cvtsd2ss)
	f.xx("xorps", (*Asm).XorpsXX)
	f.xx("andps", (*Asm).AndpsXX)
	f.xx("orps", (*Asm).OrpsXX)
	f.xx("pcmpeqd", (*Asm).PcmpeqdXX)
}

func (f *forms) fma(double bool, s string) {
	for kind, name := range map[FMAKind]string{FMADD: "vfmadd", FMSUB: "vfmsub", FNMADD: "vfnmadd", FNMSUB: "vfnmsub"} {
		for d := X0; d <= X15; d++ {
			for b := X0; b <= X15; b++ {
				for _, c := range []XReg{X1, b ^ 8, X14} {
					f.add(func(a *Asm) { a.FMA(double, kind, d, b, c) }, "%s231%s %s,%s,%s", name, s, xmm(d), xmm(b), xmm(c))
				}
			}
		}
	}
}
