package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// rawRequest sends the head of a request and returns its connection.
func (s *site) rawRequest(t *testing.T, head string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.tcp, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// A client that has said all may still listen to what the port has to say.
func TestOpenPortEndsOneWayAtATime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		all, err := io.ReadAll(conn)
		fmt.Fprintf(conn, "%d bytes, %v", len(all), err)
	}()
	s := newSite(t, "")
	id, port := s.fork(t), l.Addr().(*net.TCPAddr).Port
	conn := s.rawRequest(t, fmt.Sprintf("GET /v1/sandboxes/%s/tcp/%d HTTP/1.1\r\nHost: localhost\r\n"+
		"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\nearly ", id, port))
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	if _, err := io.WriteString(conn, "and late"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || string(got) != "14 bytes, <nil>" {
		t.Errorf("%q, %v", got, err)
	}
}

// A client that goes on sending input after its command has ended gets the whole
// answer all the same, and its end.
func TestInputAfterTheEnd(t *testing.T) {
	s := newSite(t, "")
	id := s.fork(t)
	for name, c := range map[string]struct {
		command string
		status  int
		want    string
	}{
		"it ended":    {`{"args":["sh","-c","exit 4"]}`, 200, `"exit_code":4`},
		"it is wrong": {`{"args":[]}`, 400, `"invalid_argument"`},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.rawRequest(t, fmt.Sprintf("POST /v1/sandboxes/%s/exec/stream HTTP/1.1\r\nHost: localhost\r\n"+
				"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\n\r\n", id, len(c.command)+1, c.command))
			line := fmt.Sprintf("{\"stdin\":%q}\n", strings.Repeat("x", 1000))
			input := fmt.Sprintf("%x\r\n%s\r\n", len(line), line)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != c.status {
				t.Fatalf("%v, %v", resp, err)
			}
			for range 200 {
				if _, err := io.WriteString(conn, input); err != nil {
					t.Fatalf("the connection does not linger: %v", err)
				}
			}
			if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), c.want) {
				t.Errorf("%s, %v", text, err)
			}
		})
	}
}
