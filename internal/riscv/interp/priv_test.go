package interp

import (
	"fmt"
	"testing"

	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/isa"
)

// toUser makes the program go on in user mode at the next instruction.
func toUser(a *isa.Asm) {
	a.LI(t0, hart.StatusSPP)
	a.CSR(isa.CSRRC, 0, hart.CSRSstatus, t0)
	a.Emit(isa.Inst{Op: isa.AUIPC, Rd: t0}, isa.Inst{Op: isa.ADDI, Rd: t0, Rs1: t0, Imm: 16})
	a.CSR(isa.CSRRW, 0, hart.CSRSepc, t0)
	a.Op(isa.SRET)
}

// TestIllegal: stval has the instruction's bits (priv 12.1.9), and the
// instruction changed nothing.
func TestIllegal(t *testing.T) {
	enc := isa.Encode
	tests := []struct {
		name  string
		raw   uint32
		user  bool
		setup func(r *rig)
		legal bool
	}{
		{name: "zero", raw: 0},
		{name: "ones", raw: 0xffff_ffff},
		{name: "unknown", raw: 0x0000_005b},
		{name: "reserved-rounding-mode", raw: enc(isa.Inst{Op: isa.FADD_S, RM: 5})},
		{name: "mret", raw: 0x3020_0073},
		{name: "hypervisor-fence", raw: 0x6200_0073},
		{name: "sret-in-user", raw: enc(isa.Inst{Op: isa.SRET}), user: true},
		{name: "wfi-in-user", raw: enc(isa.Inst{Op: isa.WFI}), user: true},
		{name: "sfence-in-user", raw: enc(isa.Inst{Op: isa.SFENCE_VMA}), user: true},
		{name: "no-such-csr", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a0, Imm: 0x5c0})},
		{name: "machine-csr", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a0, Imm: 0x300})},
		{name: "supervisor-csr-in-user", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a0, Imm: hart.CSRSscratch}), user: true},
		{name: "write-of-read-only", raw: enc(isa.Inst{Op: isa.CSRRW, Rd: a0, Rs1: a1, Imm: hart.CSRTime})},
		{name: "set-of-read-only", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a0, Rs1: a1, Imm: hart.CSRTime})},
		{name: "read-of-read-only", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a1, Imm: hart.CSRInstret}), legal: true},
		{name: "clear-nothing-of-read-only", raw: enc(isa.Inst{Op: isa.CSRRCI, Rd: a1, Imm: hart.CSRCycle}), legal: true},
		{name: "time-in-user", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a1, Imm: hart.CSRTime}), user: true,
			setup: func(r *rig) { r.csr(hart.CSRScounteren, 0) }},
		{name: "time-in-user-allowed", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a1, Imm: hart.CSRTime}), user: true, legal: true,
			setup: func(r *rig) { r.csr(hart.CSRScounteren, 2) }},
		{name: "cycle-in-user-with-time-allowed", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a1, Imm: hart.CSRCycle}), user: true,
			setup: func(r *rig) { r.csr(hart.CSRScounteren, 2) }},
		{name: "seed-without-a-write", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a0, Imm: hart.CSRSeed})},
		{name: "seed-with-a-write", raw: enc(isa.Inst{Op: isa.CSRRW, Rd: a1, Imm: hart.CSRSeed}), legal: true},
		{name: "seed-in-user", raw: enc(isa.Inst{Op: isa.CSRRW, Rd: a0, Imm: hart.CSRSeed}), user: true},
		{name: "float-off", raw: enc(isa.Inst{Op: isa.FADD_D, RM: isa.DYN}), setup: floatOff},
		{name: "float-load-off", raw: enc(isa.Inst{Op: isa.FLD, Rs1: s0}), setup: floatOff},
		{name: "float-store-off", raw: enc(isa.Inst{Op: isa.FSD, Rs1: s0}), setup: floatOff},
		{name: "compressed-float-load-off", raw: 0x2000, setup: floatOff}, // C.FLD fs0, 0(s0)
		{name: "fcsr-off", raw: enc(isa.Inst{Op: isa.CSRRS, Rd: a0, Imm: hart.CSRFcsr}), setup: floatOff},
		{name: "frm-reserved", raw: enc(isa.Inst{Op: isa.FADD_D, RM: isa.DYN}), setup: func(r *rig) { r.csr(hart.CSRFrm, 5) }},
		{name: "frm-reserved-but-not-used", raw: enc(isa.Inst{Op: isa.FADD_D, RM: 1}), legal: true,
			setup: func(r *rig) { r.csr(hart.CSRFrm, 5) }},
		{name: "zero-block-in-user", raw: enc(isa.Inst{Op: isa.CBO_ZERO, Rs1: s0}), user: true},
		{name: "zero-block-in-user-allowed", raw: enc(isa.Inst{Op: isa.CBO_ZERO, Rs1: s0}), user: true, legal: true,
			setup: func(r *rig) { r.csr(hart.CSRSenvcfg, 1<<7) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var at uint64
			r := newRig(t, func(a *isa.Asm) {
				a.LI(s0, rigData)
				a.LI(a0, 0x5a5a)
				if test.user {
					toUser(a)
				}
				at = a.PC()
				a.Raw32(test.raw)
			})
			if test.setup != nil {
				test.setup(r)
			}
			if test.legal {
				// The next instruction traps if the mode is user, else ends.
				if r.run() && (!test.user || r.readCSR(hart.CSRSepc) == at) {
					t.Fatalf("trapped: %s", describeTrap(r.h))
				}
				return
			}
			tval := uint64(test.raw)
			if isa.Length(uint16(tval)) == 2 {
				tval &= 0xffff
			}
			r.mustTrap(hart.IllegalInst, tval, at)
			if r.h.X[a0] != 0x5a5a {
				t.Errorf("the illegal instruction wrote a0: %#x", r.h.X[a0])
			}
		})
	}
}

func floatOff(r *rig) { r.csr(hart.CSRSstatus, 0) }

func TestCallsAndBreakpoints(t *testing.T) {
	t.Run("ecall-from-user", func(t *testing.T) {
		var at uint64
		r := newRig(t, func(a *isa.Asm) { toUser(a); at = a.PC() })
		r.mustTrap(hart.UserCall, 0, at)
		if r.readCSR(hart.CSRSstatus)&hart.StatusSPP != 0 {
			t.Error("SPP says supervisor")
		}
	})
	t.Run("ebreak", func(t *testing.T) {
		r := newRig(t, func(a *isa.Asm) { a.Op(isa.EBREAK) })
		r.mustTrap(hart.Breakpoint, rigCode, rigCode)
	})
	t.Run("compressed-ebreak", func(t *testing.T) {
		r := newRig(t, func(a *isa.Asm) { a.Raw16(1); a.Raw16(0x9002) })
		r.mustTrap(hart.Breakpoint, rigCode+2, rigCode+2)
	})
}

// TestTrapAndReturn: the stack of interrupt enables and modes (priv 12.1.1).
func TestTrapAndReturn(t *testing.T) {
	r := newRig(t, func(a *isa.Asm) {
		a.CSR(isa.CSRRSI, 0, hart.CSRSstatus, uint8(hart.StatusSIE))
		a.Raw32(0)
	})
	if !r.run() {
		t.Fatal("no trap")
	}
	status := r.readCSR(hart.CSRSstatus)
	if status&hart.StatusSIE != 0 || status&hart.StatusSPIE == 0 || status&hart.StatusSPP == 0 {
		t.Errorf("sstatus after a trap from supervisor mode is %#x", status)
	}
	r.h.Return()
	status = r.readCSR(hart.CSRSstatus)
	if status&hart.StatusSIE == 0 || status&hart.StatusSPIE == 0 || status&hart.StatusSPP != 0 || r.h.Mode != hart.Supervisor {
		t.Errorf("sstatus after SRET is %#x, mode %d", status, r.h.Mode)
	}
}

// TestDeviceAccess: devices see naturally aligned accesses of RAM-less
// addresses; everything else there is an access fault.
func TestDeviceAccess(t *testing.T) {
	const absent = 0x2000_0000
	tests := []struct {
		name  string
		in    isa.Inst
		addr  uint64
		cause uint64 // zero: no trap
	}{
		{name: "load", in: isa.Inst{Op: isa.LD, Rd: a0, Rs1: s0}, addr: rigDevice},
		{name: "store", in: isa.Inst{Op: isa.SD, Rs2: a0, Rs1: s0}, addr: rigDevice},
		{name: "load-absent", in: isa.Inst{Op: isa.LD, Rd: a0, Rs1: s0}, addr: absent, cause: hart.LoadAccess},
		{name: "store-absent", in: isa.Inst{Op: isa.SB, Rs2: a0, Rs1: s0}, addr: absent, cause: hart.StoreAccess},
		{name: "load-misaligned", in: isa.Inst{Op: isa.LW, Rd: a0, Rs1: s0}, addr: rigDevice + 2, cause: hart.LoadAccess},
		{name: "store-misaligned", in: isa.Inst{Op: isa.SW, Rs2: a0, Rs1: s0}, addr: rigDevice + 1, cause: hart.StoreAccess},
		{name: "lr", in: isa.Inst{Op: isa.LR_W, Rd: a0, Rs1: s0}, addr: rigDevice, cause: hart.LoadAccess},
		{name: "sc", in: isa.Inst{Op: isa.SC_W, Rd: a0, Rs1: s0}, addr: rigDevice, cause: hart.StoreAccess},
		{name: "amo", in: isa.Inst{Op: isa.AMOADD_W, Rd: a0, Rs1: s0}, addr: rigDevice, cause: hart.StoreAccess},
		{name: "zero-block", in: isa.Inst{Op: isa.CBO_ZERO, Rs1: s0}, addr: rigDevice, cause: hart.StoreAccess},
		{name: "past-the-end", in: isa.Inst{Op: isa.LD, Rd: a0, Rs1: s0}, addr: rigDevice + 0x100, cause: hart.LoadAccess},
		{name: "from-RAM-into-nothing", in: isa.Inst{Op: isa.SD, Rs2: a0, Rs1: s0}, addr: rigBase + rigSize - 4, cause: hart.StoreAccess},
		{name: "jump", in: isa.Inst{Op: isa.JALR, Rs1: s0}, addr: rigDevice, cause: hart.FetchAccess},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var at uint64
			r := newRig(t, func(a *isa.Asm) {
				a.LI(s0, test.addr)
				a.LI(a0, 0x77)
				at = a.PC()
				a.Emit(test.in)
			})
			if test.cause == 0 {
				r.mustEnd()
				if r.device.reads+r.device.writes != 1 {
					t.Errorf("device saw %d reads and %d writes", r.device.reads, r.device.writes)
				}
				return
			}
			tval := test.addr
			switch {
			case test.in.Op == isa.JALR:
				at = test.addr
			case test.name == "from-RAM-into-nothing":
				tval = rigBase + rigSize // the part that failed
			}
			r.mustTrap(test.cause, tval, at)
			if r.device.reads+r.device.writes != 0 {
				t.Errorf("device saw %d reads and %d writes", r.device.reads, r.device.writes)
			}
			if test.name == "from-RAM-into-nothing" && r.get64(rigBase+rigSize-8) != 0 {
				t.Error("the first half was stored")
			}
		})
	}
}

// TestMisalignedAtomics: atomics are aligned or trap, whatever lies there
// (unpriv 14.4).
func TestMisalignedAtomics(t *testing.T) {
	for _, op := range []isa.Op{isa.LR_W, isa.LR_D, isa.SC_W, isa.SC_D, isa.AMOADD_W, isa.AMOADD_D, isa.AMOSWAP_D} {
		size := uint64(8)
		if op <= isa.AMOMAXU_W {
			size = 4
		}
		for _, addr := range []uint64{rigData + 1, rigData + 2, rigData + 4, rigData + 4094, rigDevice + 1, 0x2000_0002} {
			if addr%size == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v-at-%#x", op, addr), func(t *testing.T) {
				var at uint64
				r := newRig(t, func(a *isa.Asm) {
					a.LI(s0, addr)
					a.LI(a0, ^uint64(0))
					at = a.PC()
					a.R(op, a1, s0, a0)
				})
				cause := hart.StoreMisaligned
				if op == isa.LR_W || op == isa.LR_D {
					cause = hart.LoadMisaligned
				}
				r.mustTrap(cause, addr, at)
				for gpa := uint64(rigData); gpa < rigData+8192; gpa += 8 {
					if r.get64(gpa) != 0 {
						t.Fatalf("memory at %#x was written", gpa)
					}
				}
			})
		}
	}
}

// TestAtomicPageFaults: read-modify-writes report store causes, also when the
// page may not even be read (priv 12.1.8).
func TestAtomicPageFaults(t *testing.T) {
	const va = 0x4000_0000
	for _, test := range []struct {
		op    isa.Op
		bits  uint64
		cause uint64 // zero: no trap
	}{
		{isa.AMOADD_D, 0, hart.StorePageFault},
		{isa.AMOADD_D, pteKernel &^ pteW, hart.StorePageFault},
		{isa.AMOADD_D, pteKernel, 0},
		{isa.SC_D, pteKernel &^ pteW, hart.StorePageFault},
		{isa.LR_D, pteKernel &^ (pteR | pteW), hart.LoadPageFault},
		{isa.LR_D, pteKernel &^ pteW, 0},
	} {
		t.Run(fmt.Sprintf("%v-%#x", test.op, test.bits), func(t *testing.T) {
			var at uint64
			r := newRig(t, func(a *isa.Asm) {
				a.LI(s0, va)
				at = a.PC()
				a.R(test.op, a1, s0, a0)
			})
			r.paging()
			r.mapPage(va, rigData, test.bits)
			if test.cause == 0 {
				r.mustEnd()
			} else {
				r.mustTrap(test.cause, va, at)
			}
		})
	}
}

// TestReservations: what a store-conditional may and may not do (unpriv 14.2).
func TestReservations(t *testing.T) {
	lr := func(a *isa.Asm, op isa.Op, addr uint8) { a.R(op, t1, addr, 0) }
	sc := func(a *isa.Asm, op isa.Op, addr uint8) { a.R(op, a0, addr, a1) }
	tests := []struct {
		name    string
		body    func(a *isa.Asm)
		succeed bool
	}{
		{"pair", func(a *isa.Asm) { lr(a, isa.LR_D, s0); sc(a, isa.SC_D, s0) }, true},
		{"pair-of-words", func(a *isa.Asm) { lr(a, isa.LR_W, s0); sc(a, isa.SC_W, s0) }, true},
		{"alone", func(a *isa.Asm) { sc(a, isa.SC_D, s0) }, false},
		{"alone-word", func(a *isa.Asm) { sc(a, isa.SC_W, s0) }, false},
		{"twice", func(a *isa.Asm) { lr(a, isa.LR_D, s0); a.R(isa.SC_D, a2, s0, 0); sc(a, isa.SC_D, s0) }, false},
		{"wider", func(a *isa.Asm) { lr(a, isa.LR_W, s0); sc(a, isa.SC_D, s0) }, false},
		{"elsewhere", func(a *isa.Asm) { lr(a, isa.LR_D, s0); a.I(isa.ADDI, s0, s0, 64); sc(a, isa.SC_D, s0) }, false},
		{"elsewhere-then-back", func(a *isa.Asm) {
			lr(a, isa.LR_D, s0)
			a.I(isa.ADDI, s0, s0, 64)
			a.R(isa.SC_D, a2, s0, 0)
			a.I(isa.ADDI, s0, s0, -64)
			sc(a, isa.SC_D, s0)
		}, false},
		{"after-sret", func(a *isa.Asm) {
			a.LI(t0, hart.StatusSPP)
			a.CSR(isa.CSRRS, 0, hart.CSRSstatus, t0)
			a.LA(t0, "back")
			a.CSR(isa.CSRRW, 0, hart.CSRSepc, t0)
			lr(a, isa.LR_D, s0)
			a.Op(isa.SRET)
			a.Label("back")
			sc(a, isa.SC_D, s0)
		}, false},
		{"after-sfence", func(a *isa.Asm) { lr(a, isa.LR_D, s0); a.R(isa.SFENCE_VMA, 0, 0, 0); sc(a, isa.SC_D, s0) }, false},
		{"after-satp", func(a *isa.Asm) {
			lr(a, isa.LR_D, s0)
			a.CSR(isa.CSRRW, 0, hart.CSRSatp, 0)
			sc(a, isa.SC_D, s0)
		}, false},
		{"after-arithmetic", func(a *isa.Asm) {
			lr(a, isa.LR_D, s0)
			a.I(isa.ADDI, a1, a1, 0)
			sc(a, isa.SC_D, s0)
		}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, func(a *isa.Asm) {
				a.LI(s0, rigData)
				a.LI(a1, 0x1234)
				test.body(a)
			})
			r.mustEnd()
			stored := r.get64(rigData) | r.get64(rigData+64)
			if succeeded := r.h.X[a0] == 0; succeeded != test.succeed || test.succeed != (stored == 0x1234) {
				t.Errorf("rd is %d and memory %#x, want success %v", r.h.X[a0], stored, test.succeed)
			}
		})
	}
}

// TestReservationAtZero: address zero is an address like any other.
func TestReservationAtZero(t *testing.T) {
	r := newRig(t, func(a *isa.Asm) {
		a.R(isa.SC_D, a0, 0, a1)
		a.R(isa.SC_W, a2, 0, a1)
	})
	r.paging()
	r.mapPage(0, rigData, pteKernel)
	r.h.X[a1] = ^uint64(0)
	r.mustEnd()
	if r.h.X[a0] == 0 || r.h.X[a2] == 0 || r.get64(rigData) != 0 {
		t.Errorf("SC to address 0 without LR gave %d and %d, memory %#x", r.h.X[a0], r.h.X[a2], r.get64(rigData))
	}
}

// TestZeroBlock clears the aligned block around the address.
func TestZeroBlock(t *testing.T) {
	r := newRig(t, func(a *isa.Asm) {
		a.LI(s0, rigData+64+37)
		a.Emit(isa.Inst{Op: isa.CBO_ZERO, Rs1: s0})
	})
	for i := uint64(0); i < 192; i += 8 {
		r.put64(rigData+i, ^uint64(0))
	}
	r.mustEnd()
	for i := uint64(0); i < 192; i += 8 {
		if got, zeroed := r.get64(rigData+i), i >= 64 && i < 128; (got == 0) != zeroed {
			t.Errorf("word at +%d is %#x", i, got)
		}
	}
}

// TestRetired: the counter is exact, whatever the slices.
// TestCountTrailingZeros covers CTZW, which the oracle gets wrong when the lower
// half is zero, beside CTZ (unpriv 28.4.10).
func TestCountTrailingZeros(t *testing.T) {
	for _, tc := range []struct{ in, word, double uint64 }{
		{0, 32, 64},
		{1, 0, 0},
		{1 << 31, 31, 31},
		{1 << 32, 32, 32},
		{1 << 63, 32, 63},
		{0xffff_ffff_0000_0000, 32, 32},
		{0xffff_ffff_8000_0000, 31, 31},
		{^uint64(0), 0, 0},
		{0x1234_0000_0001_0000, 16, 16},
	} {
		r := newRig(t, func(a *isa.Asm) {
			a.LI(t0, tc.in)
			a.Emit(isa.Inst{Op: isa.CTZW, Rd: a0, Rs1: t0}, isa.Inst{Op: isa.CTZ, Rd: a1, Rs1: t0})
		})
		r.mustEnd()
		if r.h.X[a0] != tc.word || r.h.X[a1] != tc.double {
			t.Errorf("%#x: CTZW gives %d and CTZ %d, want %d and %d", tc.in, r.h.X[a0], r.h.X[a1], tc.word, tc.double)
		}
	}
}

func TestRetired(t *testing.T) {
	for slice := 1; slice < 12; slice++ {
		r := newRig(t, func(a *isa.Asm) {
			a.LI(t0, 10)
			a.Label("loop")
			a.I(isa.ADDI, t0, t0, -1)
			a.B(isa.BNE, t0, 0, "loop")
			a.CSR(isa.CSRRS, a0, hart.CSRInstret, 0)
			a.CSR(isa.CSRRS, a1, hart.CSRInstret, 0)
		})
		for r.c.Run(slice) == Budget {
		}
		if r.h.X[a0] != 21 || r.h.X[a1] != 22 || r.h.Retired != 24 {
			t.Errorf("slices of %d: instret was %d and %d, in all %d; want 21, 22, 24", slice, r.h.X[a0], r.h.X[a1], r.h.Retired)
		}
	}
}

// TestBranchOutAtEndOfBudget: a taken branch into the next page, with the budget
// used up by it.
func TestBranchOutAtEndOfBudget(t *testing.T) {
	r := newRig(t, func(a *isa.Asm) {
		a.B(isa.BEQ, 0, 0, "far")
		for a.PC() < rigCode+0xf00 {
			a.Raw16(1)
		}
		a.Label("far")
		a.LI(a0, 1)
	})
	// Moved up so that the branch leaves its page.
	code := make([]byte, 0xf10)
	if err := r.m.Memory.Read(rigCode, code); err != nil {
		t.Fatal(err)
	}
	r.put(rigData+0x800, code)
	r.h.PC = rigData + 0x800
	for r.c.Run(1) == Budget {
	}
	if r.h.X[a0] != 1 || r.h.PC != rigData+0x800+0xf00+8 {
		t.Errorf("ended at %#x with a0 %d", r.h.PC, r.h.X[a0])
	}
}
