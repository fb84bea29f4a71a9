package vmgenid

import (
	"bytes"
	"errors"
	"testing"

	"github.com/forkd-dev/forkd/internal/bus"
	"github.com/forkd-dev/forkd/internal/state"
)

var _ bus.Device = (*Device)(nil)

// line counts how often it rises.
type line struct {
	high  bool
	rises int
}

func (l *line) Set(high bool) {
	if high && !l.high {
		l.rises++
	}
	l.high = high
}

var (
	idA = [Size]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	idB = [Size]byte{0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
)

func mustNew(t *testing.T, l *line, id [Size]byte, saved *state.Reader) *Device {
	t.Helper()
	d, err := New(l, id, saved)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func saved(d *Device) []byte {
	var w state.Writer
	d.Save(&w)
	return w.Bytes()
}

func reader(t *testing.T, b []byte) *state.Reader {
	t.Helper()
	r, err := state.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fork returns a device that goes on from d under another identifier.
func fork(t *testing.T, d *Device, id [Size]byte) (*Device, *line) {
	t.Helper()
	l := new(line)
	return mustNew(t, l, id, reader(t, saved(d))), l
}

func TestReadsTheIdentifier(t *testing.T) {
	d := mustNew(t, new(line), idA, nil)
	for _, c := range []struct {
		offset uint64
		width  int
		want   uint64
	}{
		{0, 8, 0x0706050403020100}, {8, 8, 0x0f0e0d0c0b0a0908}, {4, 4, 0x07060504},
		{14, 2, 0x0f0e}, {15, 1, 0x0f}, {12, 8, 0x0f0e0d0c}, {16, 8, 0}, {0xfff, 1, 0},
	} {
		if got := d.Read(c.offset, c.width); got != c.want {
			t.Errorf("%d bytes at %d: %#x, want %#x", c.width, c.offset, got, c.want)
		}
	}
	d.Write(0, 8, 0)
	if got := d.Read(1, 1); got != 1 {
		t.Error("the identifier was written")
	}
}

func TestNewMachineRaisesNothing(t *testing.T) {
	l := new(line)
	mustNew(t, l, idA, nil)
	if l.rises != 0 {
		t.Error("interrupt without a change")
	}
}

func TestChangeInterruptsUntilRead(t *testing.T) {
	// However the guest copies 16 bytes, the line is low when it has them all.
	for _, widths := range [][]int{{8, 8}, {4, 4, 4, 4}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 2, 1, 4, 8}} {
		d, l := fork(t, mustNew(t, new(line), idA, nil), idB)
		offset := 0
		for _, w := range widths {
			if !l.high {
				t.Fatalf("%v: line is low with %d bytes to read", widths, Size-offset)
			}
			d.Read(uint64(offset), w)
			offset += w
		}
		if l.high || l.rises != 1 {
			t.Errorf("%v: line is high after all was read, or rose %d times", widths, l.rises)
		}
	}
}

func TestReadingAPartTwiceIsNotReadingAll(t *testing.T) {
	d, l := fork(t, mustNew(t, new(line), idA, nil), idB)
	d.Read(0, 8)
	d.Read(0, 8)
	if !l.high {
		t.Error("line went low before the second half was read")
	}
}

func TestSameIdentifierInterruptsNobody(t *testing.T) {
	_, l := fork(t, mustNew(t, new(line), idA, nil), idA)
	if l.rises != 0 {
		t.Error("interrupt without a change")
	}
}

func TestUnseenChangeSurvivesTheSave(t *testing.T) {
	d, _ := fork(t, mustNew(t, new(line), idA, nil), idB)
	d.Read(0, 8)
	again, l := fork(t, d, idB)
	if !l.high {
		t.Fatal("the guest was not told after a second restore")
	}
	again.Read(8, 8)
	if l.high {
		t.Error("what was read before the save counts no more")
	}
	if bytes.Equal(saved(d), saved(again)) {
		t.Error("reading does not change the state")
	}
	if !bytes.Equal(saved(d), saved(mustNew(t, new(line), idB, reader(t, saved(d))))) {
		t.Error("state differs after a load")
	}
}

func TestDamagedState(t *testing.T) {
	var empty, short state.Writer
	short.Section("vmgenid", 1).U64(1)
	for _, w := range []*state.Writer{&empty, &short} {
		if _, err := New(new(line), idA, reader(t, w.Bytes())); !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("damaged state: %v", err)
		}
	}
}

func FuzzReads(f *testing.F) {
	f.Add([]byte{0, 3, 8, 3})
	f.Fuzz(func(t *testing.T, reads []byte) {
		d, l := fork(t, mustNew(t, new(line), idA, nil), idB)
		var seen [Size]bool
		left := Size
		for ; len(reads) >= 2; reads = reads[2:] {
			offset, width := uint64(reads[0]), 1<<(reads[1]%4)
			d.Read(offset, width)
			for i := offset; i < min(offset+uint64(width), Size); i++ {
				if !seen[i] {
					seen[i] = true
					left--
				}
			}
			if l.high != (left > 0) {
				t.Fatalf("line %t with %d bytes unread", l.high, left)
			}
		}
	})
}
