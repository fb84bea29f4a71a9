package board

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
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

// TestRAM: memory surrounds the devices, and is where the kernel is told that it is.
func TestRAM(t *testing.T) {
	const gib = 1 << 30
	for size, want := range map[uint64][]Range{
		512 << 20: {{0, 0, 512 << 20}},
		3 * gib:   {{0, 0, 3 * gib}},
		5 * gib:   {{0, 0, 3 * gib}, {4 * gib, 3 * gib, 2 * gib}},
	} {
		if got := AMD64.RAM(size); !slices.Equal(got, want) {
			t.Errorf("%d MiB lie at %v, want %v", size>>20, got, want)
		}
		b := Board{Map: &AMD64, RAMBytes: size, VCPUs: 1}
		params, parts := b.Params()
		i := slices.IndexFunc(parts, func(p Part) bool { return p.GPA == params })
		told := map[uint64]uint64{}
		for n := range int(parts[i].Data[0x1e8]) {
			e := parts[i].Data[0x2d0+20*n:]
			if binary.LittleEndian.Uint32(e[16:]) == 1 {
				told[binary.LittleEndian.Uint64(e)] = binary.LittleEndian.Uint64(e[8:])
			}
		}
		first := want[0]
		expected := map[uint64]uint64{0: 0x9_fc00, highMemory: first.Size - highMemory}
		for _, r := range want[1:] {
			expected[r.GPA] = r.Size
		}
		if !maps.Equal(told, expected) {
			t.Errorf("with %d MiB the kernel is told %#x, want %#x", size>>20, told, expected)
		}
	}
	if got := RISCV64.RAM(5 * gib); !slices.Equal(got, []Range{{RAMBase, 0, 5 * gib}}) {
		t.Errorf("the other board has memory at %v", got)
	}
	for size, ok := range map[uint64]bool{MaxRAMBytes: true, MaxRAMBytes + 2<<20: false} {
		b := Board{Map: &AMD64, RAMBytes: size, VCPUs: 1}
		if err := b.Validate(); (err == nil) != ok {
			t.Errorf("%d MiB: %v", size>>20, err)
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
