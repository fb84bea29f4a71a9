package files

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func rawEvent(wd int32, mask, cookie uint32, name string) []byte {
	padded := name + strings.Repeat("\x00", 16-len(name)%16)
	if name == "" {
		padded = ""
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(wd))
	for _, v := range []uint32{mask, cookie, uint32(len(padded))} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return append(b, padded...)
}

func TestNextEvent(t *testing.T) {
	first, second := rawEvent(1, unix.IN_CREATE, 0, "sixteen bytes it"), rawEvent(-1, unix.IN_Q_OVERFLOW, 7, "")
	buf := append(first, second...)
	e, rest, ok := nextEvent(buf)
	if !ok || e != (event{1, unix.IN_CREATE, 0, "sixteen bytes it"}) {
		t.Errorf("%+v, %v", e, ok)
	}
	e, rest, ok = nextEvent(rest)
	if !ok || e != (event{-1, unix.IN_Q_OVERFLOW, 7, ""}) || len(rest) != 0 {
		t.Errorf("%+v, %v, %d bytes left", e, ok, len(rest))
	}
	for cut := range first {
		if e, _, ok := nextEvent(first[:cut]); ok {
			t.Errorf("%d bytes pass for %+v", cut, e)
		}
	}
}

func TestTempNames(t *testing.T) {
	for _, existed := range []bool{false, true} {
		if got, ok := parseTemp(tempName(existed)); !ok || got != existed {
			t.Errorf("existed %v is read as %v, %v", existed, got, ok)
		}
	}
	for _, name := range []string{"", ".forkd-", ".forkd-1-2", "x.forkd-1-2.new"} {
		if _, ok := parseTemp(name); ok {
			t.Errorf("%q passes for a temporary file", name)
		}
	}
}

// FuzzNextEvent takes events off any bytes: it must come to an end, and never look beyond theirs.
func FuzzNextEvent(f *testing.F) {
	f.Add(append(rawEvent(1, unix.IN_CREATE, 0, "name"), rawEvent(2, unix.IN_MODIFY, 1, "")...))
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		for {
			e, rest, ok := nextEvent(buf)
			if !ok {
				return
			}
			if len(buf)-len(rest) < unix.SizeofInotifyEvent+len(e.name) || strings.Contains(e.name, "\x00") {
				t.Fatalf("%+v was taken off %d bytes, %d are left", e, len(buf), len(rest))
			}
			buf = rest
		}
	})
}
