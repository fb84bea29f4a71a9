package amd64

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// form is an instruction: how to emit it, and what it is in Intel syntax.
type form struct {
	text string
	emit func(*Asm)
}

// disassemble returns the text of each instruction by offset, as GNU objdump
// has it, with single spaces.
func disassemble(t *testing.T, code []byte) map[int]string {
	t.Helper()
	objdump, err := exec.LookPath("objdump")
	if err != nil {
		t.Skip("GNU objdump is not installed: nothing to compare the encoding with")
	}
	if list, err := exec.Command(objdump, "-i").Output(); err != nil || !bytes.Contains(list, []byte("elf64-x86-64")) {
		t.Skip("this objdump has no x86-64 disassembler: nothing to compare the encoding with")
	}
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(objdump, "-D", "-z", "-w", "-b", "binary", "-m", "i386:x86-64",
		"-M", "intel", "--no-show-raw-insn", file).Output()
	if err != nil {
		t.Fatalf("objdump: %v", err)
	}
	text := make(map[int]string)
	for line := range strings.Lines(string(out)) {
		at, instr, ok := strings.Cut(line, ":\t")
		off, err := strconv.ParseUint(strings.TrimSpace(at), 16, 64)
		if !ok || err != nil {
			continue
		}
		instr, _, _ = strings.Cut(instr, "#")
		text[int(off)] = strings.Join(strings.Fields(instr), " ")
	}
	return text
}

// TestObjdump disassembles every form and compares it with its text. As the
// offsets must agree too, no instruction is longer than it says.
func TestObjdump(t *testing.T) {
	all := allForms()
	var a Asm
	a.Reset(make([]byte, 0, 16*len(all)), 0)
	at := make([]int, len(all))
	for i, f := range all {
		at[i] = a.Len()
		f.emit(&a)
	}
	if err := a.Finish(); err != nil {
		t.Fatal(err)
	}
	got := disassemble(t, a.Bytes())
	if len(got) != len(all) {
		t.Errorf("disassembled to %d instructions, want %d", len(got), len(all))
	}
	failed := 0
	for i, f := range all {
		if got[at[i]] == f.text {
			continue
		}
		end := a.Len()
		if i+1 < len(all) {
			end = at[i+1]
		}
		t.Errorf("% x is %q, want %q", a.Bytes()[at[i]:end], got[at[i]], f.text)
		if failed++; failed == 20 {
			t.Fatal("too many differences")
		}
	}
	t.Logf("%d instructions, %d bytes", len(all), a.Len())
}

// TestObjdumpBranches compares the targets of all kinds of branches.
func TestObjdumpBranches(t *testing.T) {
	const base = 0x40_0000
	var a Asm
	a.Reset(make([]byte, 0, 4096), base)
	var want []struct {
		at   int
		text string
		to   func() int
	}
	emit := func(text string, to func() int, f func()) {
		want = append(want, struct {
			at   int
			text string
			to   func() int
		}{a.Len(), text, to})
		f()
	}
	back, ahead := a.NewLabel(), a.NewLabel()
	a.Bind(back)
	for range 3 { // near, and then far
		for c := O; c <= G; c++ {
			emit("j"+condNames[c], func() int { return a.Offset(back) }, func() { a.Jcc(c, back) })
			emit("j"+condNames[c], func() int { return a.Offset(ahead) }, func() { a.Jcc(c, ahead) })
			emit("j"+condNames[c], func() int { return 0x1234 }, func() { a.JccTo(c, base+0x1234) })
		}
		emit("jmp", func() int { return a.Offset(back) }, func() { a.Jmp(back) })
		emit("jmp", func() int { return a.Offset(ahead) }, func() { a.Jmp(ahead) })
		emit("jmp", func() int { return 0x1234 }, func() { a.JmpTo(base + 0x1234) })
	}
	for r := RAX; r <= R15; r++ {
		for _, l := range []Label{back, ahead} {
			at := a.Len()
			lea := fmt.Sprintf("lea %s,[rip+", gp(W64, r))
			emit(lea, func() int { return a.Offset(l) - (at + 7) }, func() { a.LeaLabel(r, l) })
		}
	}
	a.Bind(ahead)
	emit("ret", nil, a.Ret)
	if err := a.Finish(); err != nil {
		t.Fatal(err)
	}
	got := disassemble(t, a.Bytes())
	for _, w := range want {
		text := w.text
		switch {
		case w.to == nil:
		case strings.HasPrefix(text, "lea"):
			text = strings.TrimSuffix(text, "+") + signed(int32(w.to())) + "]"
		default:
			text = fmt.Sprintf("%s 0x%x", text, w.to())
		}
		// objdump has a negative rip offset as the 64-bit number.
		have := got[w.at]
		if i := strings.Index(have, "rip+0xffffffff"); i >= 0 {
			v, err := strconv.ParseUint(strings.TrimSuffix(have[i+6:], "]"), 16, 64)
			if err != nil {
				t.Fatalf("%q: %v", have, err)
			}
			have = have[:i+3] + signed(int32(v)) + "]"
		}
		if have != text {
			t.Errorf("at %#x: %q, want %q", w.at, have, text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("disassembled to %d instructions, want %d", len(got), len(want))
	}
}
