package agent_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Evaluations that a busy runtime finds waiting have their turns as they came, whichever connection they came on, and one that
// nobody waits for any more has none.
func TestEvalOrder(t *testing.T) {
	f := newGuest(t)
	f.startPython(t, "os", "time")
	f.eval(t, "order = []")
	info, _ := f.Runtime("python")
	connect := func() net.Conn {
		conn, err := f.dial(t.Context(), info.Port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	send := func(conn net.Conn, code string) {
		if err := wire.NewWriter(conn).JSON(wire.TypeEval, wire.EvalRequest{ID: 1, Code: code}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(conn net.Conn) string {
		kind, payload, err := wire.NewReader(conn).Next()
		if err != nil || kind != wire.TypeResult {
			t.Fatalf("frame %d %q, %v", kind, payload, err)
		}
		var result wire.EvalResult
		if err := json.Unmarshal(payload, &result); err != nil {
			t.Fatal(err)
		}
		return string(result.Value)
	}
	known := func() net.Conn {
		conn := connect()
		send(conn, "0")
		receive(conn)
		return conn
	}
	gate, busy, first, left, lateLeft := known(), known(), known(), known(), known()
	dir := t.TempDir()
	until := func(name string) string {
		return fmt.Sprintf("order.append(%q)\nwhile not os.path.exists(%q): time.sleep(.01)", name, filepath.Join(dir, name))
	}
	end := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	send(gate, until("gate"))
	send(busy, until("busy"))
	send(first, "order.append('first')")
	send(left, "order.append('left')")
	left.Close()
	send(lateLeft, "order.append('late left')")
	end("gate")
	receive(gate)
	time.Sleep(50 * time.Millisecond) // the poller has told of it then
	lateLeft.Close()
	second, third, newLeft := connect(), connect(), connect()
	send(second, "order.append('second')")
	send(third, "order.append('third')")
	third.(*net.UnixConn).CloseWrite() // it still wants the answer
	send(newLeft, "order.append('new and left')")
	newLeft.Close()
	end("busy")
	for _, conn := range []net.Conn{busy, first, second, third} {
		receive(conn)
	}
	last := connect()
	send(last, "order")
	if got, want := receive(last), `["gate","busy","first","second","third"]`; got != want {
		t.Errorf("evaluated were %s, not %s", got, want)
	}
}
