package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// serveTCP runs a TCP server on a loopback address that handles each connection with do.
func serveTCP(t *testing.T, address string, do func(*net.TCPConn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("this machine cannot listen on %s: %v", address, err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go do(conn.(*net.TCPConn))
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func (f *fixture) dialPort(t *testing.T, port uint16) net.Conn {
	t.Helper()
	conn, err := f.DialPort(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func echo(conn *net.TCPConn) {
	_, _ = io.Copy(conn, conn)
	conn.Close()
}

func TestDialPort(t *testing.T) {
	f := newGuest(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			port := serveTCP(t, address, echo)
			data := make([]byte, 3<<20+17)
			rand.Read(data)
			conn := f.dialPort(t, port)
			go func() {
				_, _ = conn.Write(data)
				_ = conn.(agent.CloseWriter).CloseWrite()
			}()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d of %d bytes came back, %v", len(got), len(data), err)
			}
		})
	}
}

func TestDialPortThatNobodyListensOn(t *testing.T) {
	f := newGuest(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	_, err = f.DialPort(t.Context(), port)
	wantCode(t, err, wire.CodeRefused)
	_, err = f.DialPort(t.Context(), 0)
	wantCode(t, err, wire.CodeBadRequest)
}

// Either side can end its direction alone, and whoever is gone does not keep the other waiting.
func TestDialPortEnds(t *testing.T) {
	f := newGuest(t)
	gone := make(chan error, 1)
	// The server ends first, and still listens.
	port := serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("last words"))
		_ = conn.CloseWrite()
		got, err := io.ReadAll(conn)
		if string(got) != "answer" {
			err = fmt.Errorf("server read %q, %v", got, err)
		}
		conn.Close()
		gone <- err
	})
	conn := f.dialPort(t, port)
	if got, err := io.ReadAll(conn); string(got) != "last words" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, _ = conn.Write([]byte("answer"))
	_ = conn.(agent.CloseWriter).CloseWrite()
	if err := <-gone; err != nil {
		t.Error(err)
	}
	// The client leaves a server that says nothing.
	port = serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, err := conn.Read(make([]byte, 1))
		gone <- err
	})
	conn = f.dialPort(t, port)
	conn.Close()
	if err := <-gone; err == nil {
		t.Error("the server did not hear of the client's end")
	}
	// The server leaves a client that goes on sending.
	port = serveTCP(t, "127.0.0.1:0", func(conn *net.TCPConn) { _ = conn.SetLinger(0); conn.Close() })
	conn = f.dialPort(t, port)
	eventually(t, "the client hears of it", func() bool {
		_, err := conn.Write(make([]byte, 1<<16))
		return err != nil
	})
}

// Idle connections cost two goroutines each, and nothing is left of those that are over.
func TestDialPortMany(t *testing.T) {
	f := newGuest(t)
	port := serveTCP(t, "127.0.0.1:0", echo)
	before := runtime.NumGoroutine()
	for range 3 {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				conn, err := f.DialPort(t.Context(), port)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				want := fmt.Sprint("hello ", i)
				_, _ = conn.Write([]byte(want))
				got := make([]byte, len(want))
				if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
					t.Errorf("%q came back as %q, %v", want, got, err)
				}
			})
		}
		wg.Wait()
	}
	eventually(t, "goroutines return to where they were", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// What a client says right behind its request is not lost.
func TestDialPortEarlyData(t *testing.T) {
	f := newGuest(t)
	port := serveTCP(t, "127.0.0.1:0", echo)
	conn, err := f.dial(t.Context(), wire.AgentPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	payload, err := wire.EncodeRequest(wire.OpDial, wire.DialRequest{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	early := bytes.Repeat([]byte("early "), 1000)
	if _, err := conn.Write(append(frame(wire.TypeRequest, string(payload)), early...)); err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.UnixConn).CloseWrite()
	if kind, _, err := wire.NewReader(conn).Next(); err != nil || kind != wire.TypeOK {
		t.Fatalf("%d, %v", kind, err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, early) {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(early), err)
	}
}

// The context of a dial is for dialing only.
func TestDialPortContext(t *testing.T) {
	f := newGuest(t)
	port := serveTCP(t, "127.0.0.1:0", echo)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := f.DialPort(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	time.Sleep(20 * time.Millisecond)
	_, _ = conn.Write([]byte("x"))
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if _, err := f.DialPort(ctx, port); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestMetricsAndUsers(t *testing.T) {
	f := newGuest(t)
	m, err := f.Metrics(t.Context())
	if err != nil || m.CPUs < 1 || m.CPUBusyNS <= 0 || m.CPUTotalNS <= m.CPUBusyNS || m.MemoryTotal <= 0 || m.MemoryUsed <= 0 ||
		m.MemoryUsed+m.MemoryCache > m.MemoryTotal || m.DiskTotal <= 0 || m.DiskUsed <= 0 || m.DiskUsed > m.DiskTotal {
		t.Errorf("%+v, %v", m, err)
	}
	f.mustRun(t, sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"))
	if again, err := f.Metrics(t.Context()); err != nil || again.CPUTotalNS < m.CPUTotalNS || again.WallNS <= m.WallNS {
		t.Errorf("%+v, then %+v, %v", m, again, err)
	}
	for _, name := range []string{"root", "0"} {
		if u, err := f.User(t.Context(), name); err != nil || u.Name != "root" || u.UID != 0 || u.GID != 0 || u.Home != "/root" {
			t.Errorf("%s: %+v, %v", name, u, err)
		}
	}
	_, err = f.User(t.Context(), "nobody-such")
	wantCode(t, err, wire.CodeNoSuchUser)
	_, err = f.User(t.Context(), "")
	wantCode(t, err, wire.CodeBadRequest)
}
