package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// What was cut short does not look whole, whichever direction finds out first, and what is whole does not look cut short.
func TestForwardedConnectionEnds(t *testing.T) {
	const half, rest = "4\r\nhalf\r\n", "5\r\n rest\r\n0\r\n\r\n"
	for name, c := range map[string]struct {
		daemon func(conn *net.UnixConn, in *bufio.Reader)
		want   string
		reset  bool
	}{
		"the daemon dies with bytes unread": {func(conn *net.UnixConn, in *bufio.Reader) {
			io.WriteString(conn, half)
			in.ReadByte() // of more than in has room for
		}, "half", true},
		"nothing more is taken, and then it breaks": {func(conn *net.UnixConn, in *bufio.Reader) {
			conn.CloseRead()
			io.WriteString(conn, half)
			time.Sleep(20 * time.Millisecond) // for the other side to notice
		}, "half", true},
		"nothing more is taken, and the answer is whole": {func(conn *net.UnixConn, in *bufio.Reader) {
			conn.CloseRead()
			io.WriteString(conn, half)
			time.Sleep(20 * time.Millisecond)
			io.WriteString(conn, rest)
		}, "half rest", false},
	} {
		t.Run(name, func(t *testing.T) {
			here, done := forwarded(t, c.daemon)
			got := make([]byte, len("half"))
			if _, err := io.ReadFull(here, got); err != nil {
				t.Fatal(err)
			}
			if _, err := here.Write(make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
			more, err := io.ReadAll(here)
			got = append(got, more...)
			if string(got) != c.want || errors.Is(err, syscall.ECONNRESET) != c.reset || !c.reset && err != nil {
				t.Errorf("the client here got %q, %v", got, err)
			}
			here.Close()
			if err := <-done; errors.Is(err, client.ErrReset) != c.reset || !c.reset && err != nil {
				t.Errorf("told: %v", err)
			}
		})
	}
}

// forwarded returns a connection that pass carries to a daemon, and what that returned.
func forwarded(t *testing.T, daemon func(*net.UnixConn, *bufio.Reader)) (here net.Conn, done <-chan error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReaderSize(conn, 16)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp-chunked\r\n\r\n")
		daemon(conn.(*net.UnixConn), in)
	}()
	c, err := client.New(client.Config{URL: "unix://" + socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	local, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	here, err = net.Dial("tcp", local.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	there, err := local.Accept()
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- pass(context.Background(), c, "sb0123456789ab", 80, there) }()
	return here, end
}
