package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// pair returns two ends of a socket.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

func TestMessagesArriveWhole(t *testing.T) {
	a, b := pair(t)
	from, to := wire.NewConn(a), wire.NewConn(b)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("contents"); err != nil {
		t.Fatal(err)
	}
	blob := make([]byte, 3<<20) // more than a socket takes at once
	for i := range blob {
		blob[i] = byte(i * 7)
	}
	sent := []*wire.Message{
		{ID: 1, Op: wire.OpStart, Body: json.RawMessage(`{"id":7}`)},
		{Op: wire.OpLayer, Body: json.RawMessage(`{}`), Files: []*os.File{file, file}},
		{ID: 2, Err: &wire.Error{Code: wire.CodeQuota, Text: "too much"}},
		{ID: 3, Blob: blob},
		{ID: 4, Blob: blob[:1], Files: []*os.File{file}},
	}
	go func() {
		for _, m := range sent {
			if err := from.Send(m); err != nil {
				t.Error(err)
			}
		}
		from.Finish(time.Minute)
	}()
	for i, want := range sent {
		got, err := to.Receive()
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if got.ID != want.ID || got.Op != want.Op || string(got.Body) != string(want.Body) || !bytes.Equal(got.Blob, want.Blob) || len(got.Files) != len(want.Files) {
			t.Errorf("message %d: got %+v", i, got)
		}
		for _, f := range got.Files {
			text := make([]byte, 8)
			if _, err := f.ReadAt(text, 0); err != nil || string(text) != "contents" {
				t.Errorf("message %d: the file holds %q, %v", i, text, err)
			}
			f.Close()
		}
		if want.Err != nil && (got.Err == nil || !errors.Is(got.Err, page.ErrQuota) || errors.Is(got.Err, machine.ErrEnded)) {
			t.Errorf("message %d: error %v", i, got.Err)
		}
	}
	if _, err := to.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// prefix makes the beginning of a message.
func prefix(header, blob, files uint32, rest string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, header)
	b = binary.LittleEndian.AppendUint32(b, blob)
	return append(binary.LittleEndian.AppendUint32(b, files), rest...)
}

func TestMalformedMessages(t *testing.T) {
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"a vast header":          {prefix(1<<31, 0, 0, ""), wire.ErrMalformed},
		"a vast blob":            {prefix(2, 1<<31, 0, "{}"), wire.ErrMalformed},
		"files that do not come": {prefix(2, 0, 1, "{}"), wire.ErrMalformed},
		"no JSON":                {prefix(3, 0, 0, "...{}"), wire.ErrMalformed},
		"half a prefix":          {make([]byte, 5), io.ErrUnexpectedEOF},
		"half a header":          {prefix(10, 0, 0, "{"), io.ErrUnexpectedEOF},
		"half a blob":            {prefix(2, 10, 0, "{}..."), io.ErrUnexpectedEOF},
		"no header":              {prefix(2, 0, 0, ""), io.ErrUnexpectedEOF},
	} {
		a, b := pair(t)
		if _, err := a.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if m, err := wire.NewConn(b).Receive(); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

func TestTooLongIsNotSent(t *testing.T) {
	a, _ := pair(t)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := wire.NewConn(a).Send(&wire.Message{Files: []*os.File{f, f, f, f, f, f, f, f, f}}); err == nil {
		t.Error("nine files were sent")
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(prefix(2, 3, 0, "{}abc"))
	f.Add(prefix(8, 0, 0, `{"id":1}`))
	f.Add(prefix(1<<30, 1<<30, 1<<30, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, y := pair(t)
		go func() {
			x.Write(b)
			x.Close()
		}()
		c := wire.NewConn(y)
		for {
			if _, err := c.Receive(); err != nil {
				return
			}
		}
	})
}

func TestOpening(t *testing.T) {
	for _, want := range []wire.Purpose{wire.Control, wire.Streams} {
		b := wire.Opening(want)
		if len(b) != wire.OpeningSize {
			t.Fatalf("%d bytes", len(b))
		}
		if got, err := wire.ParseOpening([wire.OpeningSize]byte(b)); err != nil || got != want {
			t.Errorf("%v became %v, %v", want, got, err)
		}
	}
	for at, value := range map[int]byte{0: 'x', 4: 99, 6: 9, 7: 1} {
		b := [wire.OpeningSize]byte(wire.Opening(wire.Control))
		b[at] = value
		if p, err := wire.ParseOpening(b); err == nil {
			t.Errorf("byte %d being %d is %v", at, value, p)
		}
	}
}

func TestPageNumbers(t *testing.T) {
	if _, _, err := wire.ParseNumbers(make([]byte, 8), 2); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ bytes, stored int }{{7, 1}, {8, 3}, {8, -1}, {0, 1}} {
		if _, _, err := wire.ParseNumbers(make([]byte, c.bytes), c.stored); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestOpenLayerRefuses: a layer that is described as larger than it may be is not opened,
// nor one that is not as it is described.
func TestOpenLayerRefuses(t *testing.T) {
	numbers := make([]byte, 4*5)
	for name, d := range map[string]wire.Layer{
		"more numbers than pages": {Kind: page.Pages, Limit: 4},
		"more pages than numbers": {Kind: page.Pages, Limit: 8, Stored: 6},
		"a sealed one":            {Kind: page.Sealed, Limit: 8},
		"no layer file":           {Kind: page.Stored, Limit: 8},
		"a larger disk":           {Kind: page.Raw, Limit: 1},
		"a smaller disk":          {Kind: page.Raw, Limit: 8},
	} {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(2 * page.Size); err != nil {
			t.Fatal(err)
		}
		if l, err := wire.OpenLayer(f, d, numbers); !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, page.ErrCorrupt) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
		if err := f.Close(); err == nil {
			t.Errorf("%s: the file stays open", name)
		}
	}
}

// FuzzOpenLayer looks for descriptions that panic, or that are taken and not true.
func FuzzOpenLayer(f *testing.F) {
	f.Add(int(page.Pages), uint32(8), 2, []byte{1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0})
	f.Add(int(page.Raw), uint32(2), 0, []byte(nil))
	f.Add(int(page.Pages), uint32(1<<31), 1<<30, make([]byte, 4))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, kind int, limit uint32, stored int, blob []byte) {
		file, err := os.CreateTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		if err := file.Truncate(2 * page.Size); err != nil {
			t.Fatal(err)
		}
		l, err := wire.OpenLayer(file, wire.Layer{Kind: page.Kind(kind), Limit: limit, Stored: stored}, blob)
		if err != nil {
			return
		}
		defer l.Release()
		if full, holes := l.Numbers(); l.Limit() != limit || len(full) != 2 || len(full)+len(holes) > int(limit) {
			t.Errorf("a layer of %d pages has %d and %d of them", l.Limit(), len(full), len(holes))
		}
	})
}

func TestChildren(t *testing.T) {
	var b []byte
	want := []wire.Child{{ID: 7, Generation: [16]byte{1, 2}, Note: []byte("one")}, {ID: 1 << 63}, {ID: 9, Note: []byte("{}")}}
	for i := range want {
		var err error
		if b, err = want[i].AppendBinary(b); err != nil {
			t.Fatal(err)
		}
	}
	got, err := wire.ParseChildren(b)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, c := range got {
		if c.ID != want[i].ID || c.Generation != want[i].Generation || !bytes.Equal(c.Note, want[i].Note) {
			t.Errorf("%+v became %+v", want[i], c)
		}
	}
	for cut := 1; cut < len(b); cut++ {
		if got, err := wire.ParseChildren(b[:cut]); err == nil && len(got) == len(want) {
			t.Errorf("all children in %d bytes of %d", cut, len(b))
		}
	}
}

func FuzzParseChildren(f *testing.F) {
	one, _ := (&wire.Child{ID: 1, Note: []byte("x")}).AppendBinary(nil)
	f.Add(one)
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := wire.ParseChildren(b)
		if err != nil {
			return
		}
		var again []byte
		for i := range all {
			again, _ = all[i].AppendBinary(again)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}
