package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden file")

const golden = "testdata/v1.state"

// sample has every type of value, and an empty section.
func sample() *Writer {
	w := new(Writer)
	e := w.Section("vcpu/riscv64", 3)
	e.U8(0x12)
	e.U16(0x1234)
	e.U32(0x12345678)
	e.U64(0x123456789abcdef0)
	e.Bool(true)
	e.Bool(false)
	w.Section("nothing", 0)
	e = w.Section("virtio-blk/0", 1<<32-1)
	e.Bytes([]byte{1, 2, 3})
	e.String("héllo")
	e.Bytes(nil)
	return w
}

func checkSample(t *testing.T, r *Reader) {
	t.Helper()
	d, err := r.Take("virtio-blk/0", 1<<32-1)
	if err != nil {
		t.Fatal(err)
	}
	if b, s, none := d.Bytes(), d.String(), d.Bytes(); !bytes.Equal(b, []byte{1, 2, 3}) || s != "héllo" || len(none) != 0 {
		t.Errorf("read %v, %q, %v", b, s, none)
	}
	if err := d.Done(); err != nil {
		t.Error(err)
	}
	if d, err = r.Take("vcpu/riscv64", 3); err != nil {
		t.Fatal(err)
	}
	if a, b, c, e := d.U8(), d.U16(), d.U32(), d.U64(); a != 0x12 || b != 0x1234 || c != 0x12345678 || e != 0x123456789abcdef0 {
		t.Errorf("read %#x, %#x, %#x, %#x", a, b, c, e)
	}
	if yes, no := d.Bool(), d.Bool(); !yes || no {
		t.Errorf("read flags %v, %v", yes, no)
	}
	if err := d.Done(); err != nil {
		t.Error(err)
	}
	if d, err = r.Take("nothing", 0); err != nil || d.Done() != nil {
		t.Errorf("empty section: %v", err)
	}
	if err := r.Done(); err != nil {
		t.Error(err)
	}
}

func TestGolden(t *testing.T) {
	got := sample().Bytes()
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("encoding differs from %s:\n%x\n%x", golden, got, want)
	}
	r, err := Parse(want)
	if err != nil {
		t.Fatal(err)
	}
	checkSample(t, r)
}

func TestEmptyState(t *testing.T) {
	r, err := Parse(new(Writer).Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Done(); err != nil {
		t.Error(err)
	}
}

func TestDamageIsRefused(t *testing.T) {
	good := sample().Bytes()
	for n := range good {
		if _, err := Parse(good[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	for bit := range 8 * len(good) {
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := Parse(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("bit %d flipped: %v", bit, err)
		}
	}
	for name, bad := range map[string][]byte{
		"zero length": nil,
		"zeros":       make([]byte, len(good)),
		"twice":       append(slices.Clone(good), good...),
		"longer":      append(slices.Clone(good), 0),
		"too large":   make([]byte, MaxSize+1),
	} {
		if _, err := Parse(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sum makes the checksum of an encoded state right.
func sum(body []byte) []byte {
	return binary.LittleEndian.AppendUint32(slices.Clone(body), crc32.Checksum(body, castagnoli))
}

// encode builds a state whose count and sections need not agree.
func encode(count uint32, kinds ...string) []byte {
	e := Encoder{b: []byte(magic)}
	e.U32(count)
	for _, kind := range kinds {
		e.String(kind)
		e.U32(1)
		e.Bytes([]byte("payload"))
	}
	return sum(e.b)
}

func TestForgedStateIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		data   []byte
		reason string
	}{
		"same section twice":    {encode(2, "a", "a"), `"a" appears twice`},
		"fewer than announced":  {encode(3, "a", "b"), "too short"},
		"many more announced":   {encode(maxSections, "a"), "too short"},
		"too many announced":    {encode(maxSections+1, "a"), "more than any machine has"},
		"more than announced":   {encode(1, "a", "b"), "left over"},
		"section without name":  {encode(1, ""), "0 bytes long"},
		"section of long name":  {encode(1, strings.Repeat("x", maxKind+1)), "65 bytes long"},
		"another version":       {sum([]byte("forkdST\x02\x00\x00\x00\x00")), "format version"},
		"name beyond the end":   {sum([]byte(magic + "\x01\x00\x00\x00\xff\xff\xff\xff")), "too short"},
		"count beyond the end":  {sum([]byte(magic + "\x01\x00")), "not a saved machine"},
		"nothing but the magic": {sum([]byte(magic)), "not a saved machine"},
	} {
		if _, err := Parse(c.data); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: error %q should say %q", name, err, c.reason)
		}
	}
	if _, err := Parse(encode(1, strings.Repeat("x", maxKind))); err != nil {
		t.Errorf("longest name: %v", err)
	}
}

func TestTake(t *testing.T) {
	r, err := Parse(sample().Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind    string
		version uint32
		reason  string
	}{
		{"absent", 1, `"absent" is missing`},
		{"vcpu/riscv64", 4, "has version 3, this forkd reads version 4"},
		{"vcpu/riscv64", 2, "has version 3"},
		{"", 0, "missing"},
	} {
		if _, err := r.Take(c.kind, c.version); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("Take(%q, %d): error %q should say %q", c.kind, c.version, err, c.reason)
		}
	}
	if _, err := r.Take("nothing", 0); err != nil {
		t.Error(err)
	}
	if _, err := r.Take("nothing", 0); err == nil {
		t.Error("a section was handed out twice")
	}
	err = r.Done()
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), `["vcpu/riscv64" "virtio-blk/0"]`) {
		t.Errorf("Done with two sections left: %v", err)
	}
}

func TestDecoderErrorsStick(t *testing.T) {
	decoder := func(b ...byte) *Decoder { return &Decoder{b: b, kind: "test"} }
	for name, read := range map[string]func(*Decoder) any{
		"U8":     func(d *Decoder) any { return d.U8() },
		"U16":    func(d *Decoder) any { return d.U16() },
		"U32":    func(d *Decoder) any { return d.U32() },
		"U64":    func(d *Decoder) any { return d.U64() },
		"Bool":   func(d *Decoder) any { return d.Bool() },
		"Bytes":  func(d *Decoder) any { return len(d.Bytes()) },
		"String": func(d *Decoder) any { return d.String() },
	} {
		d := decoder()
		read(d)
		first := d.Err()
		if !errors.Is(first, ErrCorrupt) || !strings.Contains(first.Error(), `"test"`) {
			t.Errorf("%s of nothing: error %v", name, first)
		}
		d.b = []byte{1, 1, 1, 1, 1, 1, 1, 1, 1} // must not be read any more
		switch v := read(d); v {
		case uint8(0), uint16(0), uint32(0), uint64(0), false, 0, "":
		default:
			t.Errorf("%s after an error returned %v", name, v)
		}
		if d.Fail("later"); d.Done() != first {
			t.Errorf("%s: first error was replaced by %v", name, d.Done())
		}
	}
	if d := decoder(2); d.Bool() || d.Err() == nil {
		t.Error("a flag of 2 was accepted")
	}
	if d := decoder(4, 0, 0, 0, 1, 2, 3); d.Bytes() != nil || d.Err() == nil {
		t.Error("bytes beyond the end were accepted")
	}
	if d := decoder(1, 2); d.U8() != 1 || d.Done() == nil {
		t.Error("a byte left over was accepted")
	}
	if d := decoder(1); d.U8() != 1 || d.Done() != nil {
		t.Error("a section read to its end was refused")
	}
	d := decoder(1, 0, 0, 0, 7, 9)
	_ = append(d.Bytes(), 0xff)
	if d.U8() != 9 {
		t.Error("appending to Bytes overwrote what follows")
	}
}

func TestWriterMisuse(t *testing.T) {
	for name, kind := range map[string]string{"twice": "vcpu/riscv64", "no name": "", "long name": strings.Repeat("x", 65)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			sample().Section(kind, 1)
		}()
	}
}

// FuzzParseState looks for input that panics. With fix, the checksum is made
// right, so that what follows it is reached.
func FuzzParseState(f *testing.F) {
	good, err := os.ReadFile(golden)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add(good[:len(good)-4], true)
	f.Add(encode(2, "a", "a"), false)
	f.Add([]byte(magic+"\x01\x00\x00\x00\xff\xff\xff\xff"), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix {
			b = sum(b)
		}
		r, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error %v", err)
			}
			return
		}
		total := 0
		for _, s := range slices.Clone(r.sections) {
			kind := string(s.kind)
			total += len(kind) + len(s.payload)
			d, err := r.Take(kind, s.version)
			if err != nil {
				t.Fatal(err)
			}
			for d.Err() == nil {
				_ = d.String()
				d.Bool()
				d.U64()
			}
		}
		if total > len(b) {
			t.Fatalf("%d bytes of sections from %d bytes", total, len(b))
		}
		if err := r.Done(); err != nil {
			t.Fatal(err)
		}
	})
}

// The description must be of the version that is written.
func TestFormatIsDescribed(t *testing.T) {
	b, err := os.ReadFile("../../docs/format/state.md")
	if err != nil {
		t.Fatal(err)
	}
	name, version := magic[:len(magic)-1], magic[len(magic)-1]
	for _, want := range []string{
		fmt.Sprintf("# Machine state format, version %d\n", version),
		fmt.Sprintf("| %d | magic | the bytes `%s` |", len(name), name),
		fmt.Sprintf("| 1 | version | %d |", version),
		fmt.Sprintf("| 4 | kind length | 1 to %d |", maxKind),
		fmt.Sprintf("at most %d MiB", MaxSize>>20),
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/format/state.md lacks %q", want)
		}
	}
}
