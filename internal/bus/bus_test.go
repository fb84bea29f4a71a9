package bus

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// probe records the accesses that reach it.
type probe struct {
	name string
	log  *[]string
}

func (p probe) Read(offset uint64, width int) uint64 {
	*p.log = append(*p.log, fmt.Sprintf("%s r%d %#x", p.name, width, offset))
	return 0xabcd
}

func (p probe) Write(offset uint64, width int, value uint64) {
	*p.log = append(*p.log, fmt.Sprintf("%s w%d %#x=%#x", p.name, width, offset, value))
}

const top = 1<<64 - 1

func TestMap(t *testing.T) {
	for _, c := range []struct {
		name       string
		base, size uint64
		ok         bool
	}{
		{"before", 0x0, 0x1000, true},
		{"touching below", 0xf00, 0x100, true},
		{"touching above", 0x2000, 1, true},
		{"between", 0x2800, 0x800, true},
		{"high", top - 0x1000, 0x1000, true},
		{"same", 0x1000, 0x1000, false},
		{"within", 0x1800, 8, false},
		{"first byte", 0x1000, 1, false},
		{"last byte", 0x1fff, 1, false},
		{"over the begin", 0xfff, 2, false},
		{"over the end", 0x1fff, 2, false},
		{"around", 0x800, 0x2000, false},
		{"around both", 0, top, false},
		{"over the second", 0x2fff, 2, false},
		{"empty", 0x5000, 0, false},
		{"wrapping", top, 2, false},
		{"wrapping far", 0x5000, top, false},
	} {
		var log []string
		var b Bus
		for _, base := range []uint64{0x3000, 0x1000} {
			if err := b.Map(base, 0x1000, probe{"old", &log}); err != nil {
				t.Fatal(err)
			}
		}
		err := b.Map(c.base, c.size, probe{"new", &log})
		if (err == nil) != c.ok {
			t.Errorf("%s: error %v", c.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%#x", c.base)) {
			t.Errorf("%s: error %q does not say where", c.name, err)
		}
		if _, ok := b.Read(c.base, 1); c.ok && (!ok || log[0] != "new r1 0x0") {
			t.Errorf("%s: access went to %v", c.name, log)
		}
		log = nil
		b.Read(0x1fff, 1)
		b.Read(0x3000, 1)
		if want := []string{"old r1 0xfff", "old r1 0x0"}; !slices.Equal(log, want) {
			t.Errorf("%s: accesses to the old devices: %v", c.name, log)
		}
	}
}

func TestAccess(t *testing.T) {
	var log []string
	var b Bus
	for base, name := range map[uint64]string{0x1000: "a", 0x1010: "b", top - 0x10: "z"} {
		if err := b.Map(base, 0x10, probe{name, &log}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		gpa   uint64
		width int
		want  string // "": no device
	}{
		{0x1000, 1, "a r1 0x0"},
		{0x1000, 8, "a r8 0x0"},
		{0x1008, 8, "a r8 0x8"},
		{0x100f, 1, "a r1 0xf"},
		{0x1010, 4, "b r4 0x0"},
		{0x101e, 2, "b r2 0xe"},
		{top - 8, 8, "z r8 0x8"},
		{top - 1, 1, "z r1 0xf"},
		{0xfff, 1, ""},
		{0xffc, 8, ""},  // begins before the device
		{0x100f, 2, ""}, // half in the next device
		{0x1009, 8, ""},
		{0x101d, 4, ""}, // half in nothing
		{0x1020, 1, ""},
		{top, 1, ""},
		{top - 4, 8, ""},
		{0, 8, ""},
	} {
		log = nil
		v, ok := b.Read(c.gpa, c.width)
		if ok != (c.want != "") || strings.Join(log, ",") != c.want || ok != (v == 0xabcd) {
			t.Errorf("Read(%#x, %d) = %#x, %v, reached %q, want %q", c.gpa, c.width, v, ok, log, c.want)
		}
		log = nil
		ok = b.Write(c.gpa, c.width, 7)
		want := strings.Replace(c.want, " r", " w", 1)
		if want != "" {
			want += "=0x7"
		}
		if ok != (want != "") || strings.Join(log, ",") != want {
			t.Errorf("Write(%#x, %d) = %v, reached %q, want %q", c.gpa, c.width, ok, log, want)
		}
	}
	var empty Bus
	if _, ok := empty.Read(0x1000, 1); ok {
		t.Error("an empty bus has a device")
	}
}

func BenchmarkRead(b *testing.B) {
	var bus Bus
	for i := range uint64(10) {
		if err := bus.Map(i<<12, 0x1000, nothing{}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		bus.Read(9<<12, 4)
	}
}

type nothing struct{}

func (nothing) Read(uint64, int) uint64   { return 0 }
func (nothing) Write(uint64, int, uint64) {}
