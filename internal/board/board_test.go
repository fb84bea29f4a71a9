package board

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// tree is a parsed device tree node. The parser below shares nothing with the
// writer.
type tree struct {
	name     string
	props    []string // in order
	values   map[string][]byte
	children []*tree
}

// parse reads a flattened device tree (dtspec 5) and checks its structure.
func parse(b []byte) (*tree, error) {
	be := binary.BigEndian
	if len(b) < 40 || be.Uint32(b) != 0xd00dfeed {
		return nil, fmt.Errorf("no device tree")
	}
	h := make([]int, 10)
	for i := range h {
		h[i] = int(be.Uint32(b[4*i:]))
	}
	total, structs, strs, reserve := h[1], h[2], h[3], h[4]
	if total != len(b) || structs+h[9] > len(b) || strs+h[8] > len(b) || structs%4 != 0 || reserve%8 != 0 {
		return nil, fmt.Errorf("bad header %v of %d bytes", h, len(b))
	}
	if h[5] != 17 || h[6] != 16 || h[7] != 0 {
		return nil, fmt.Errorf("bad versions or boot CPU: %v", h)
	}
	if reserve+16 > structs || be.Uint64(b[reserve:]) != 0 || be.Uint64(b[reserve+8:]) != 0 {
		return nil, fmt.Errorf("reservations do not end where they begin")
	}
	text := func(at int) string {
		s, _, _ := strings.Cut(string(b[at:]), "\x00")
		return s
	}
	var stack []*tree
	root := &tree{}
	stack = append(stack, root)
	for at := structs; at < structs+h[9]; {
		token := be.Uint32(b[at:])
		at += 4
		top := stack[len(stack)-1]
		switch token {
		case 1:
			n := &tree{name: text(at), values: map[string][]byte{}}
			at += (len(n.name) + 4) &^ 3
			top.children = append(top.children, n)
			stack = append(stack, n)
		case 2:
			if len(stack) == 1 {
				return nil, fmt.Errorf("node ends that never began")
			}
			stack = stack[:len(stack)-1]
		case 3:
			size, name := int(be.Uint32(b[at:])), text(strs+int(be.Uint32(b[at+4:])))
			at += 8
			if len(top.children) > 0 {
				return nil, fmt.Errorf("property %s after a child", name)
			}
			if _, twice := top.values[name]; twice {
				return nil, fmt.Errorf("property %s twice", name)
			}
			top.props = append(top.props, name)
			top.values[name] = b[at : at+size]
			at += (size + 3) &^ 3
		case 9:
			if at != structs+h[9] || len(stack) != 1 || len(root.children) != 1 {
				return nil, fmt.Errorf("tree ends too early")
			}
			return root.children[0], nil
		default:
			return nil, fmt.Errorf("token %d", token)
		}
	}
	return nil, fmt.Errorf("tree does not end")
}

// cells decodes a value, which must consist of whole cells.
func (n *tree) cells(t *testing.T, name string) []uint64 {
	t.Helper()
	b, ok := n.values[name]
	if !ok || len(b)%4 != 0 {
		t.Fatalf("%s: property %s is absent or of %d bytes", n.name, name, len(b))
	}
	var cells []uint64
	for ; len(b) > 0; b = b[4:] {
		cells = append(cells, uint64(binary.BigEndian.Uint32(b)))
	}
	return cells
}

func (n *tree) text(name string) string {
	return strings.TrimSuffix(strings.ReplaceAll(string(n.values[name]), "\x00", ","), ",")
}

func (n *tree) find(path string) *tree {
	for name := range strings.SplitSeq(path, "/") {
		i := slices.IndexFunc(n.children, func(c *tree) bool { return c.name == name })
		if i < 0 {
			return nil
		}
		n = n.children[i]
	}
	return n
}

// source renders a tree in the usual text form.
func (n *tree) source(out *strings.Builder, indent string) {
	name := n.name
	if name == "" {
		name = "/"
	}
	fmt.Fprintf(out, "%s%s {\n", indent, name)
	for _, p := range n.props {
		fmt.Fprintf(out, "%s\t%s", indent, p)
		switch v := n.values[p]; {
		case len(v) == 0:
		case isText(v):
			for i, s := range strings.Split(strings.TrimSuffix(string(v), "\x00"), "\x00") {
				fmt.Fprintf(out, "%s%q", []string{" = ", ", "}[min(i, 1)], s)
			}
		default:
			out.WriteString(" = <")
			for i := 0; i+4 <= len(v); i += 4 {
				fmt.Fprintf(out, "%s%#x", []string{"", " "}[min(i, 1)], binary.BigEndian.Uint32(v[i:]))
			}
			out.WriteString(">")
		}
		out.WriteString(";\n")
	}
	for _, c := range n.children {
		c.source(out, indent+"\t")
	}
	fmt.Fprintf(out, "%s};\n", indent)
}

func isText(v []byte) bool {
	return v[len(v)-1] == 0 && v[0] != 0 && !slices.ContainsFunc(v, func(c byte) bool { return c != 0 && c < ' ' || c > '~' })
}

var full = Board{
	RAMBytes: 256 << 20, VCPUs: 2, CommandLine: "console=hvc0 quiet",
	InitrdStart: 0x8800_0000, InitrdSize: 0x12345, Seed: []byte{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4},
}

func mustParse(t *testing.T, b *Board) *tree {
	t.Helper()
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	root, err := parse(b.DeviceTree())
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// The map may not change: snapshots hold kernels that have read it.
func TestGoldenTree(t *testing.T) {
	var got strings.Builder
	mustParse(t, &full).source(&got, "")
	const golden = "testdata/board.dts"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the tree differs from %s:\n%s", golden, got.String())
	}
}

// walk calls visit for every node with the path to it.
func (n *tree) walk(path string, visit func(path string, n *tree)) {
	visit(path, n)
	for _, c := range n.children {
		c.walk(path+"/"+c.name, visit)
	}
}

func TestTreeIsConsistent(t *testing.T) {
	for vcpus := 1; vcpus <= MaxVCPUs; vcpus++ {
		b := full
		b.VCPUs = vcpus
		root := mustParse(t, &b)
		phandles := map[uint64]string{}
		type window struct{ base, end uint64 }
		var windows []window
		irqs := map[uint64]string{}
		root.walk("", func(path string, n *tree) {
			if p, ok := n.values["phandle"]; ok {
				h := uint64(binary.BigEndian.Uint32(p))
				if other, twice := phandles[h]; twice || h == 0 {
					t.Errorf("%s and %s have phandle %d", path, other, h)
				}
				phandles[h] = path
			}
			if reg := n.values["reg"]; len(reg) == 16 {
				c := n.cells(t, "reg")
				base, size := c[0]<<32|c[1], c[2]<<32|c[3]
				_, unit, _ := strings.Cut(n.name, "@")
				if at, err := strconv.ParseUint(unit, 16, 64); err != nil || at != base {
					t.Errorf("%s is at %#x", path, base)
				}
				for _, w := range windows {
					if base < w.end && w.base < base+size {
						t.Errorf("%s overlaps [%#x, %#x)", path, w.base, w.end)
					}
				}
				windows = append(windows, window{base, base + size})
			}
			if _, ok := n.values["interrupts"]; ok {
				irq := n.cells(t, "interrupts")[0]
				if other, twice := irqs[irq]; twice || irq < 1 || irq > Sources {
					t.Errorf("%s and %s have interrupt %d", path, other, irq)
				}
				irqs[irq] = path
			}
		})
		root.walk("", func(path string, n *tree) {
			for _, name := range []string{"interrupt-parent", "regmap"} {
				if _, ok := n.values[name]; ok && phandles[n.cells(t, name)[0]] == "" {
					t.Errorf("%s: %s leads nowhere", path, name)
				}
			}
		})
		plic := root.find(fmt.Sprintf("soc/plic@%x", PLICBase))
		contexts := plic.cells(t, "interrupts-extended")
		if len(contexts) != 2*vcpus {
			t.Fatalf("%d vCPUs: PLIC has contexts %v", vcpus, contexts)
		}
		for id := range vcpus {
			want := fmt.Sprintf("/cpus/cpu@%d/interrupt-controller", id)
			if got := phandles[contexts[2*id]]; got != want || contexts[2*id+1] != 9 {
				t.Errorf("PLIC context %d leads to %s, interrupt %d", id, got, contexts[2*id+1])
			}
		}
	}
}

func TestTreeSaysWhatTheBoardHas(t *testing.T) {
	root := mustParse(t, &full)
	chosen := root.find("chosen")
	if got := chosen.text("bootargs"); got != full.CommandLine {
		t.Errorf("command line %q", got)
	}
	start, end := chosen.cells(t, "linux,initrd-start"), chosen.cells(t, "linux,initrd-end")
	if s, e := start[0]<<32|start[1], end[0]<<32|end[1]; s != full.InitrdStart || e != full.InitrdStart+full.InitrdSize {
		t.Errorf("initrd is at [%#x, %#x)", s, e)
	}
	if got := chosen.values["rng-seed"]; !slices.Equal(got, full.Seed) {
		t.Errorf("seed %x", got)
	}
	for i := range Slots {
		n := root.find(fmt.Sprintf("soc/virtio@%x", VirtioBase(i)))
		if n == nil || n.text("compatible") != "virtio,mmio" || n.cells(t, "interrupts")[0] != uint64(VirtioIRQ(i)) {
			t.Errorf("virtio slot %d is absent or wrong", i)
		}
	}
	cpu := root.find("cpus/cpu@1")
	if isa := cpu.text("riscv,isa"); !strings.HasPrefix(isa, "rv64imafdc_zicboz_") || strings.Contains(isa, ",") {
		t.Errorf("ISA string %q", isa)
	}
	// Both spellings name the same extensions.
	for e := range strings.SplitSeq(cpu.text("riscv,isa-extensions"), ",") {
		if len(e) > 1 && !slices.Contains(strings.Split(cpu.text("riscv,isa"), "_"), e) {
			t.Errorf("extension %s is missing in the ISA string", e)
		}
	}
	if f := root.find("cpus").cells(t, "timebase-frequency")[0]; f != TimebaseHz {
		t.Errorf("timebase %d", f)
	}

	big := Board{RAMBytes: MaxRAMBytes, VCPUs: 1}
	root = mustParse(t, &big)
	if c := root.find("memory@80000000").cells(t, "reg"); c[0]<<32|c[1] != RAMBase || c[2]<<32|c[3] != MaxRAMBytes {
		t.Errorf("memory %#x", c)
	}
	for _, absent := range []string{"rng-seed", "linux,initrd-start", "linux,initrd-end"} {
		if _, ok := root.find("chosen").values[absent]; ok {
			t.Errorf("%s is there without a reason", absent)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Board)
		ok     bool
	}{
		"smallest":               {func(b *Board) { *b = Board{RAMBytes: MinRAMBytes, VCPUs: 1} }, true},
		"largest":                {func(b *Board) { b.RAMBytes, b.VCPUs = MaxRAMBytes, MaxVCPUs }, true},
		"no vCPU":                {func(b *Board) { b.VCPUs = 0 }, false},
		"negative vCPUs":         {func(b *Board) { b.VCPUs = -1 }, false},
		"too many vCPUs":         {func(b *Board) { b.VCPUs = MaxVCPUs + 1 }, false},
		"little memory":          {func(b *Board) { b.RAMBytes = MinRAMBytes - 2<<20 }, false},
		"much memory":            {func(b *Board) { b.RAMBytes = MaxRAMBytes + 2<<20 }, false},
		"odd memory":             {func(b *Board) { b.RAMBytes += 4096 }, false},
		"initrd to the end":      {func(b *Board) { b.InitrdSize = RAMBase + b.RAMBytes - b.InitrdStart }, true},
		"initrd past the end":    {func(b *Board) { b.InitrdSize = RAMBase + b.RAMBytes - b.InitrdStart + 1 }, false},
		"initrd below memory":    {func(b *Board) { b.InitrdStart = RAMBase - 1 }, false},
		"initrd above memory":    {func(b *Board) { b.InitrdStart = 1 << 40 }, false},
		"initrd that wraps":      {func(b *Board) { b.InitrdSize = 1<<64 - 1 }, false},
		"longest command line":   {func(b *Board) { b.CommandLine = strings.Repeat("x", 1023) }, true},
		"too long command line":  {func(b *Board) { b.CommandLine = strings.Repeat("x", 1024) }, false},
		"command line with NUL":  {func(b *Board) { b.CommandLine = "a\x00b" }, false},
		"no initrd, odd address": {func(b *Board) { b.InitrdStart, b.InitrdSize = 3, 0 }, true},
	} {
		b := full
		c.change(&b)
		if err := b.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The reference compiler reads the tree too.
func TestCompilerReadsTree(t *testing.T) {
	dtc, err := exec.LookPath("dtc")
	if err != nil {
		t.Skip("dtc is not installed")
	}
	cmd := exec.Command(dtc, "-q", "-I", "dtb", "-O", "dts")
	cmd.Stdin = strings.NewReader(string(full.DeviceTree()))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(string(out), full.CommandLine) {
		t.Errorf("output lacks the command line:\n%s", out)
	}
}
