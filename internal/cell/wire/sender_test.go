package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// TestTellingDoesNotWait: what a peer does not take up is kept, in order, with its files.
func TestTellingDoesNotWait(t *testing.T) {
	a, b := pair(t)
	from, to := wire.NewConn(a), wire.NewConn(b)
	const messages = 2000 // far more than a socket takes
	for i := range messages {
		m := &wire.Message{Op: wire.OpLayer, Body: json.RawMessage(fmt.Sprint(i)), Blob: make([]byte, i)}
		var file *os.File
		if i%10 == 0 {
			var err error
			if file, err = os.CreateTemp(t.TempDir(), ""); err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(file, i)
			m.Files = []*os.File{file}
		}
		if err := from.Send(m); err != nil {
			t.Fatal(err)
		}
		if file != nil {
			file.Close() // it is the caller's
		}
	}
	go from.Finish(time.Minute)
	for i := range messages {
		m, err := to.Receive()
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if string(m.Body) != fmt.Sprint(i) || len(m.Blob) != i || len(m.Files) > 0 != (i%10 == 0) {
			t.Fatalf("message %d: %s with %d bytes and %d files", i, m.Body, len(m.Blob), len(m.Files))
		}
		for _, f := range m.Files {
			text := make([]byte, 8)
			if n, _ := f.ReadAt(text, 0); string(text[:n]) != fmt.Sprint(i) {
				t.Errorf("message %d: the file holds %q", i, text)
			}
			f.Close()
		}
	}
}

// TestSendIsBounded: a peer that takes up nothing is not asked for more, and then not told more;
// what was kept for it goes with the connection.
func TestSendIsBounded(t *testing.T) {
	a, b := pair(t)
	from := wire.NewConn(a)
	ask := &wire.Message{ID: 1, Op: wire.OpStats, Body: json.RawMessage("{}")}
	tell := &wire.Message{Op: wire.OpNote, Body: json.RawMessage("{}"), Blob: make([]byte, 1<<20)}
	told, asked := 0, 0
	for ; told < 1000; told++ {
		if err := from.Send(ask); err == nil {
			asked++
		} else if !errors.Is(err, wire.ErrBehind) {
			t.Fatal(err)
		}
		if err := from.Send(tell); errors.Is(err, wire.ErrBehind) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if told == 1000 || asked == 0 || asked >= told {
		t.Errorf("asked %d times and told %d times", asked, told)
	}
	b.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err := from.Send(tell); err != nil && !errors.Is(err, wire.ErrBehind) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it goes on although the peer is gone")
		}
	}
	from.Close()
	if err := from.Send(tell); err == nil || errors.Is(err, wire.ErrBehind) {
		t.Errorf("sent on a closed connection: %v", err)
	}
}

// TestTooLongIsAMatterOfOne: a message that is too long is not sent, and others are.
func TestTooLongIsAMatterOfOne(t *testing.T) {
	a, b := pair(t)
	from, to := wire.NewConn(a), wire.NewConn(b)
	body, _ := json.Marshal(strings.Repeat("x", 17<<20))
	if err := from.Send(&wire.Message{ID: 1, Body: body}); !errors.Is(err, wire.ErrTooLong) {
		t.Errorf("sent: %v", err)
	}
	if err := from.Send(&wire.Message{ID: 2}); err != nil {
		t.Fatal(err)
	}
	if m, err := to.Receive(); err != nil || m.ID != 2 {
		t.Errorf("got %+v, %v", m, err)
	}
}
