package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
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
		from.Close()
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
	for _, want := range []wire.Opening{
		{Control: true}, {VM: 1<<63 + 5, Port: 1 << 31}, {VM: 3, Port: 52, Wait: true}, {VM: 3, Port: 52, Start: 1 << 60},
	} {
		b, err := want.AppendBinary(nil)
		if err != nil || len(b) != wire.OpeningSize {
			t.Fatalf("%+v: %d bytes, %v", want, len(b), err)
		}
		if got, err := wire.ParseOpening([wire.OpeningSize]byte(b)); err != nil || got != want {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
	}
	good, _ := wire.Opening{VM: 3, Port: 52}.AppendBinary(nil)
	for at, value := range map[int]byte{0: 'x', 4: 99, 6: 1, 7: 1} {
		b := [wire.OpeningSize]byte(good)
		b[at] = value
		if o, err := wire.ParseOpening(b); err == nil {
			t.Errorf("byte %d being %d is %+v", at, value, o)
		}
	}
}

// streams returns two ends of a stream.
func streams(t testing.TB) (a, b *wire.Stream) {
	t.Helper()
	x, y := pair(t)
	a, errA := wire.NewStream(x, nil)
	b, errB := wire.NewStream(y, nil)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestStreamCarriesBytes(t *testing.T) {
	a, b := streams(t)
	random := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	go func() {
		for rest := want; len(rest) > 0; {
			n := min(len(rest), random.IntN(200_000))
			if _, err := a.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
		a.CloseWrite()
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	// The other direction is open still.
	go func() {
		b.Write([]byte("answer"))
		b.Close()
	}()
	var text bytes.Buffer
	if _, err := a.WriteTo(&text); text.String() != "answer" || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%q, %v", text.String(), err)
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("written after CloseWrite")
	}
}

func TestStreamReset(t *testing.T) {
	a, b := streams(t)
	if _, err := a.Write([]byte("before")); err != nil {
		t.Fatal(err)
	}
	if err := a.Reset(&wire.Error{Code: wire.CodeEnded, Text: "it is over"}); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(b)
	if string(got) != "before" || !errors.Is(err, machine.ErrEnded) || err.Error() != "it is over" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestStreamWaitsForTheGuest(t *testing.T) {
	a, b := streams(t)
	if err := a.Send(wire.TypeOpen, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if err := b.Opened(); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	c, d := streams(t)
	if err := c.Send(wire.TypeRefused, (&wire.Error{Code: wire.CodeRefused, Text: "nobody"}).Encode()); err != nil {
		t.Fatal(err)
	}
	if err := d.Opened(); err == nil || err.Error() != "nobody" {
		t.Errorf("refused: %v", err)
	}
}

// TestStreamDeadline: a read that was cut short takes nothing away.
func TestStreamDeadline(t *testing.T) {
	x, y := pair(t)
	b, err := wire.NewStream(y, nil)
	if err != nil {
		t.Fatal(err)
	}
	frame := append(binary.LittleEndian.AppendUint32(nil, 4), "abcd"...)
	for _, part := range [][]byte{frame[:2], frame[2:6]} {
		if _, err := x.Write(part); err != nil {
			t.Fatal(err)
		}
		if len(part) == 2 {
			b.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := b.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			b.SetReadDeadline(time.Time{})
		}
	}
	buf := make([]byte, 4)
	if n, err := b.Read(buf); err != nil || string(buf[:n]) != "ab" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	x.Write(frame[6:])
	if n, err := b.Read(buf); err != nil || string(buf[:n]) != "cd" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

func FuzzStream(f *testing.F) {
	f.Add(append(binary.LittleEndian.AppendUint32(nil, 2), "ab"...))
	f.Add(binary.LittleEndian.AppendUint32(nil, uint32(wire.TypeEnd)<<24))
	f.Add(append(binary.LittleEndian.AppendUint32(nil, uint32(wire.TypeReset)<<24|2), "{}"...))
	f.Add([]byte{0xff, 0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, y := pair(t)
		go func() {
			x.Write(b)
			x.Close()
		}()
		s, err := wire.NewStream(y, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, s); n > int64(len(b)) {
			t.Errorf("%d bytes out of %d, %v", n, len(b), err)
		}
	})
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
