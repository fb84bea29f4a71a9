package board

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// TestParams follows the pointers from the boot parameters to every table, as a
// kernel does, and sums each up.
func TestParams(t *testing.T) {
	b := Board{Map: &AMD64, RAMBytes: 512 << 20, VCPUs: 3, CommandLine: "quiet", InitrdStart: 400 << 20, InitrdSize: 1 << 20}
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	params, parts := b.Params()
	ram := make([]byte, highMemory)
	for _, p := range parts {
		if p.GPA+uint64(len(p.Data)) > highMemory {
			t.Fatalf("a part of %d bytes at %#x does not lie below %#x", len(p.Data), p.GPA, highMemory)
		}
		copy(ram[p.GPA:], p.Data)
	}
	le := binary.LittleEndian
	p := ram[params:]
	if at := le.Uint32(p[0x228:]); !bytes.HasPrefix(ram[at:], []byte("quiet\x00")) {
		t.Errorf("the command line at %#x is %q", at, ram[at:at+8])
	}
	if start, size := le.Uint32(p[0x218:]), le.Uint32(p[0x21c:]); start != 400<<20 || size != 1<<20 {
		t.Errorf("the initramfs has %d bytes at %#x", size, start)
	}
	var total uint64
	for i := range int(p[0x1e8]) {
		if e := p[0x2d0+20*i:]; le.Uint32(e[16:]) == 1 {
			total += le.Uint64(e[8:])
		}
	}
	if want := b.RAMBytes - (highMemory - 0x9_fc00); total != want {
		t.Errorf("%d bytes of memory are usable, want %d", total, want)
	}
	root := ram[le.Uint64(p[0x70:]):]
	if string(root[:8]) != "RSD PTR " || sum(root[:20]) != 0 || sum(root[:36]) != 0 {
		t.Errorf("the root pointer is %q, with sums %d and %d", root[:8], sum(root[:20]), sum(root[:36]))
	}
	seen := map[string][]byte{}
	read := func(at uint64) []byte {
		table := ram[at:][:le.Uint32(ram[at+4:])]
		if sum(table) != 0 {
			t.Errorf("table %q sums up to %d", table[:4], sum(table))
		}
		seen[string(table[:4])] = table
		return table
	}
	for list := read(le.Uint64(root[24:]))[36:]; len(list) > 0; list = list[8:] {
		if table := read(le.Uint64(list)); string(table[:4]) == "FACP" {
			read(le.Uint64(table[140:]))
		}
	}
	if n := bytes.Count(seen["APIC"][44:], []byte{0, 8}); n < 3 {
		t.Errorf("the processors' table has %d of 3", n)
	}
	for _, name := range []string{"VR00", "VR04", "VGEN", "GED_", "_S5_"} {
		if !strings.Contains(string(seen["DSDT"]), name) {
			t.Errorf("there is no %s among the devices", name)
		}
	}
}

func TestLengths(t *testing.T) {
	for n, want := range map[int][]byte{0: {1}, 62: {63}, 63: {0x41, 0x04}, 4000: {0x42, 0xfa}} {
		var a aml
		if a.length(n); !bytes.Equal(a.b, want) {
			t.Errorf("the length of %d bytes is %x, want %x", n, a.b, want)
		}
	}
}
