package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

const top = 1<<64 - 1

var arena = page.NewArena()

func slot(t testing.TB, base uint64, pages page.Number, quota int) Slot {
	s := page.NewStack(pages)
	o := page.NewOverlay(s, arena, quota)
	s.Release()
	t.Cleanup(o.Close)
	return Slot{Base: base, Pages: o}
}

// space has RAM at [0x1000, 0x4000), [0x4000, 0x6000) and [0x10000, 0x11000).
func space(t testing.TB) *Space {
	t.Helper()
	s, err := NewSpace(slot(t, 0x10000, 1, 0), slot(t, 0x1000, 3, 0), slot(t, 0x4000, 2, 0))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// owned counts the pages that the space's overlays own.
func (s *Space) owned() (n int) {
	for _, slot := range s.slots {
		n += slot.Pages.Pages()
	}
	return n
}

// TestSlotsOfOneOverlay: parts of the same pages lie in several places.
func TestSlotsOfOneOverlay(t *testing.T) {
	whole := slot(t, 0, 8, 0).Pages
	s, err := NewSpace(Slot{Base: 0x10_0000, Pages: whole, First: 3}, Slot{Base: 0x1000, Pages: whole, Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	for gpa, n := range map[uint64]page.Number{0x1000: 0, 0x3000: 2, 0x10_0000: 3, 0x10_4000: 7} {
		if err := s.PutUint64(gpa+8, gpa); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint64(whole.Read(n)[8:]); got != gpa {
			t.Errorf("page %d has %#x, want %#x", n, got, gpa)
		}
	}
	for _, gpa := range []uint64{0, 0x4000, 0xf_f000, 0x10_5000} {
		if err := s.PutUint64(gpa, 1); !errors.Is(err, ErrRange) {
			t.Errorf("writing at %#x: %v", gpa, err)
		}
	}
	for name, slots := range map[string][]Slot{
		"too many pages":  {{Base: 0, Pages: whole, First: 4, Count: 5}},
		"beyond the end":  {{Base: 0, Pages: whole, First: 9}},
		"pages in common": {{Base: 0, Pages: whole, Count: 4}, {Base: 0x10_0000, Pages: whole, First: 3}},
		"all and a part":  {{Base: 0, Pages: whole}, {Base: 0x10_0000, Pages: whole, First: 7, Count: 1}},
	} {
		if _, err := NewSpace(slots...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestNewSpace(t *testing.T) {
	const high = top - 2*page.Size + 1
	for _, c := range []struct {
		name  string
		bases []uint64 // of slots of two pages
		ok    bool
	}{
		{"none", nil, true},
		{"apart", []uint64{0x9000, 0x1000}, true},
		{"touching", []uint64{0x1000, 0x3000}, true},
		{"last but one page", []uint64{high - page.Size}, true},
		{"same", []uint64{0x1000, 0x1000}, false},
		{"overlap", []uint64{0x1000, 0x2000}, false},
		{"misaligned", []uint64{0x1001}, false},
		{"wraps", []uint64{top &^ (page.Size - 1)}, false},
		{"ends at the very top", []uint64{high}, false}, // its end has no address
	} {
		var slots []Slot
		for _, base := range c.bases {
			slots = append(slots, slot(t, base, 2, 0))
		}
		if s, err := NewSpace(slots...); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		} else if err == nil && len(s.Slots()) != len(slots) {
			t.Errorf("%s: %d slots", c.name, len(s.Slots()))
		}
	}
}

func TestBounds(t *testing.T) {
	s := space(t)
	for _, c := range []struct {
		gpa, n uint64
		ok     bool
	}{
		{0x1000, 0x3000, true},
		{0x1fff, 2, true}, // crosses a page
		{0x3fff, 1, true},
		{0x5fff, 1, true},
		{0x10000, 0x1000, true},
		{0x1000, 0, true},
		{0xfff, 1, false},
		{0xfff, 2, false},
		{0x3fff, 2, false}, // crosses slots, though they touch
		{0x1000, 0x3001, false},
		{0x5fff, 2, false},
		{0x6000, 1, false},
		{0x6000, 0, true}, // the end of a slot is a fine place for nothing
		{0x7000, 0, false},
		{0x11000, 1, false},
		{0x10fff, 2, false},
		{top, 1, false},
		{top, 2, false},
		{top - 7, 8, false}, // ends exactly where addresses end
		{0x1000, top, false},
		{0x1000, top - 0xfff, false}, // wraps to 0
		{0x2000, top - 0xfff, false}, // wraps into RAM
		{0, 1, false},
	} {
		if err := s.Check(c.gpa, c.n); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrRange) {
			t.Errorf("Check(%#x, %#x): %v", c.gpa, c.n, err)
		}
		if c.n > 1<<20 {
			continue
		}
		before := s.owned()
		b := bytes.Repeat([]byte{0xee}, int(c.n))
		if err := s.Write(c.gpa, b); (err == nil) != c.ok {
			t.Errorf("Write(%#x, %#x): %v", c.gpa, c.n, err)
		}
		if !c.ok && s.owned() != before {
			t.Errorf("Write(%#x, %#x) was refused but moved pages", c.gpa, c.n)
		}
		if err := s.Read(c.gpa, b); (err == nil) != c.ok {
			t.Errorf("Read(%#x, %#x): %v", c.gpa, c.n, err)
		}
	}
	for gpa, ok := range map[uint64]bool{0: false, 0xfff: false, 0x1000: true, 0x5fff: true, 0x6000: false, 0xffff: false, 0x10fff: true, 0x11000: false, top: false} {
		if p := s.ReadPage(gpa); (p != nil) != ok {
			t.Errorf("ReadPage(%#x) is RAM: %v", gpa, p != nil)
		}
		if p, err := s.WritePage(gpa); (p != nil) != ok || err != nil {
			t.Errorf("WritePage(%#x) is RAM: %v, error %v", gpa, p != nil, err)
		}
		if s.Private(gpa) != ok {
			t.Errorf("Private(%#x) is %v", gpa, !ok)
		}
	}
}

// Random reads and writes agree with a flat array.
func TestAgainstArray(t *testing.T) {
	s, err := NewSpace(slot(t, 0x8000_0000, 16, 0))
	if err != nil {
		t.Fatal(err)
	}
	flat := make([]byte, 16*page.Size)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 5000 {
		at := rng.IntN(len(flat))
		n := rng.IntN(min(3*page.Size, len(flat)-at) + 1)
		got := make([]byte, n)
		if i%2 == 0 {
			for j := range got {
				got[j] = byte(rng.Uint32())
			}
			copy(flat[at:], got)
			if err := s.Write(0x8000_0000+uint64(at), got); err != nil {
				t.Fatal(err)
			}
		} else if err := s.Read(0x8000_0000+uint64(at), got); err != nil || !bytes.Equal(got, flat[at:at+n]) {
			t.Fatalf("%d bytes at %#x: error %v, or wrong contents", n, at, err)
		}
	}
}

func TestFixedWidth(t *testing.T) {
	s := space(t)
	for _, gpa := range []uint64{0x1000, 0x1ff9, 0x1ffe, 0x1fff} { // the last ones cross a page
		if err := s.PutUint64(gpa, 0x1122334455667788); err != nil {
			t.Fatal(err)
		}
		if v, err := s.Uint64(gpa); v != 0x1122334455667788 || err != nil {
			t.Errorf("Uint64(%#x) = %#x, %v", gpa, v, err)
		}
		if v, err := s.Uint32(gpa); v != 0x55667788 || err != nil {
			t.Errorf("Uint32(%#x) = %#x, %v", gpa, v, err)
		}
		if v, err := s.Uint16(gpa); v != 0x7788 || err != nil {
			t.Errorf("Uint16(%#x) = %#x, %v", gpa, v, err)
		}
		if err := errors.Join(s.PutUint32(gpa, 0xa1b2c3d4), s.PutUint16(gpa, 0xeeff)); err != nil {
			t.Fatal(err)
		}
		if v, _ := s.Uint64(gpa); v != 0x11223344a1b2eeff {
			t.Errorf("narrow writes at %#x gave %#x", gpa, v)
		}
	}
	_, err16 := s.Uint16(0x5fff)
	_, err32 := s.Uint32(0x5ffd)
	_, err64 := s.Uint64(top - 3)
	for _, err := range []error{err16, err32, err64, s.PutUint16(0x5fff, 1), s.PutUint32(0x5ffd, 1), s.PutUint64(top-3, 1)} {
		if !errors.Is(err, ErrRange) {
			t.Errorf("error %v, want ErrRange", err)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		s.PutUint16(0x1000, 1)
		s.PutUint64(0x1ffc, 1)
		s.Uint32(0x1000)
	}); n != 0 {
		t.Errorf("fixed-width accesses allocate %v times", n)
	}
}

func TestHostWithoutPages(t *testing.T) {
	s, err := NewSpace(slot(t, 0x1000, 4, 1))
	if err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte{1}, 3*page.Size)
	if err := s.Write(0x1000, b); !errors.Is(err, page.ErrQuota) {
		t.Fatalf("error %v, want ErrQuota", err)
	}
	if s.owned() != 1 || s.Private(0x2000) {
		t.Error("more was written than the quota allows")
	}
	if v, err := s.Uint16(0x1ffe); v != 0x0101 || err != nil {
		t.Errorf("the page within the quota holds %#x, %v", v, err)
	}
	if p, err := s.WritePage(0x2000); p != nil || err == nil {
		t.Error("WritePage gave a page beyond the quota")
	}
}

func BenchmarkUint32(b *testing.B) {
	s := space(b)
	for b.Loop() {
		if _, err := s.Uint32(0x4ff0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite64KiB(b *testing.B) {
	s, err := NewSpace(slot(b, 0, 64, 0))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	binary.LittleEndian.PutUint64(buf, 1)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if err := s.Write(0x1234, buf); err != nil {
			b.Fatal(err)
		}
	}
}
