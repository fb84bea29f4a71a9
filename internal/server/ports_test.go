package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// echo is a server "in" a sandbox that tells what it was asked.
func echo(t *testing.T) (port int) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Guest", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s auth=%q key=%q body=%q", r.Method, r.RequestURI, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), body)
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err = strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Requests to a port arrive as they were sent, but for what is between client and
// daemon.
func TestPorts(t *testing.T) {
	port := echo(t)
	for _, c := range []struct{ token, method, path, want string }{
		{"", "GET", "/", `GET / auth="Bearer t" key="k" body=""`},
		{"", "POST", "/a/b?x=%20y;&x", `POST /a/b?x=%20y;&x auth="Bearer t" key="k" body="hello"`},
		{"", "PATCH", "/a%2Fb//c/", `PATCH /a%2Fb//c/ auth="Bearer t" key="k" body="hello"`},
		{"t", "DELETE", "/x", `DELETE /x auth="" key="" body=""`},
	} {
		s := newSite(t, c.token)
		id := s.fork(t)
		body := ""
		if strings.HasPrefix(c.method, "P") {
			body = "hello"
		}
		resp, text := s.ask(t, c.method, fmt.Sprintf("/v1/sandboxes/%s/ports/%d%s", id, port, c.path), body, "Authorization", "Bearer t", "X-Api-Key", "k")
		if resp.StatusCode != http.StatusTeapot || resp.Header.Get("X-Guest") != "yes" || text != c.want {
			t.Errorf("%s %s: %s %s\nwant %s", c.method, c.path, resp.Status, text, c.want)
		}
	}
	s := newSite(t, "t")
	id := s.fork(t)
	resp, text := s.ask(t, "GET", fmt.Sprintf("/v1/sandboxes/%s/ports/%d/", id, port), "")
	wantError(t, resp, text, 401, "unauthorized", "token")
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	number := closed.Addr().(*net.TCPAddr).Port
	closed.Close()
	resp, text = s.ask(t, "GET", fmt.Sprintf("/v1/sandboxes/%s/ports/%d/", id, number), "", "Authorization", "Bearer t")
	wantError(t, resp, text, 502, "port_closed", "listens")
	if _, err := s.Fake.Pause(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	resp, text = s.ask(t, "GET", fmt.Sprintf("/v1/sandboxes/%s/ports/%d/", id, port), "", "Authorization", "Bearer t")
	wantError(t, resp, text, 409, "paused", "paused")
}

// listen has connections answered, one after the other, and closed.
func listen(t *testing.T, answer func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
	return l
}

// What goes wrong with a server in a sandbox is no fault of the daemon's.
func TestPortsThatAnswerNoHTTP(t *testing.T) {
	l := listen(t, func(conn net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(conn))
		switch {
		case err != nil:
		case req.URL.Path == "/ssh":
			io.WriteString(conn, "SSH-2.0-guest\r\n")
		case req.URL.Path == "/reset":
			conn.(*net.TCPConn).SetLinger(0)
		}
	})
	port := l.Addr().(*net.TCPAddr).Port
	s := newSite(t, "")
	id := s.fork(t)
	for _, path := range []string{"/ssh", "/reset", "/close"} {
		resp, text := s.ask(t, "GET", fmt.Sprintf("/v1/sandboxes/%s/ports/%d%s", id, port, path), "")
		wantError(t, resp, text, 502, "port_closed", fmt.Sprintf("port %d of sandbox %s", port, id))
	}
	for target, want := range map[string]struct {
		status int
		code   api.ErrorCode
	}{
		fmt.Sprintf("sbffffffffffff/ports/%d/", port): {404, "not_found"},
		id + "/ports/0/":     {400, "invalid_argument"},
		id + "/ports/65536/": {400, "invalid_argument"},
		id + "/ports/http/":  {400, "invalid_argument"},
		"a_b/ports/80/":      {400, "invalid_argument"},
	} {
		resp, text := s.ask(t, "GET", "/v1/sandboxes/"+target, "")
		wantError(t, resp, text, want.status, want.code, "")
	}
}

// A bare connection carries bytes both ways, and each way ends by itself.
func TestOpenPort(t *testing.T) {
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
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil {
			io.WriteString(conn, strings.ToUpper(line))
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	s := newSite(t, "secret")
	id := s.fork(t)
	conn, err := s.c.DialPort(context.Background(), id, port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "HELLO\n" {
		t.Errorf("%q, %v", got, err)
	}
	l.Close()
	if _, err := s.c.DialPort(context.Background(), id, port); !client.IsCode(err, "port_closed") {
		t.Errorf("dialling a closed port: %v", err)
	}
}

// Who asks for chunks can tell a server that ends from one that breaks its connection, and who does not has the bytes alone.
func TestOpenPortThatBreaks(t *testing.T) {
	l := listen(t, func(conn net.Conn) {
		io.WriteString(conn, "half a wo")
		if line, _ := bufio.NewReader(conn).ReadString('\n'); line == "break\n" {
			conn.(*net.TCPConn).SetLinger(0)
		}
	})
	port := l.Addr().(*net.TCPAddr).Port
	s := newSite(t, "")
	id := s.fork(t)
	for line, want := range map[string]error{"end\n": nil, "break\n": client.ErrReset} {
		conn, err := s.c.DialPort(context.Background(), id, port)
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, len("half"))
		if _, err := io.ReadFull(conn, first); err != nil {
			t.Error(err)
		}
		io.WriteString(conn, line)
		if got, err := io.ReadAll(conn); err != want || string(got) != " a wo" {
			t.Errorf("%q: %q, %v", line, got, err)
		}
		conn.Close()
	}
	conn, err := net.Dial("tcp", s.tcp[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/sandboxes/%s/tcp/%d HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nend\n", id, port)
	if got, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(got), "Upgrade: tcp\r\n\r\nhalf a wo") {
		t.Errorf("%q, %v", got, err)
	}
}

// A watch tells of what happens after it was begun, and of its own end.
func TestWatch(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	write := func(path string) {
		t.Helper()
		if err := s.c.WriteFile(ctx, id, path, strings.NewReader("x"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	write("/old")
	w, err := s.c.Watch(ctx, id, "/", client.WatchOptions{Entries: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write("/fresh")
	if e, err := w.Recv(); err != nil || e.Kind != "create" || e.Name != "fresh" || e.Entry == nil || e.Entry.Path != "/fresh" {
		t.Errorf("%+v, %v", e, err)
	}
	write("/overflow")
	if e, err := w.Recv(); !client.IsCode(err, "capacity_exceeded") {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := s.c.Watch(ctx, id, "/nowhere", client.WatchOptions{}); !client.IsCode(err, "not_found") {
		t.Errorf("watching nothing: %v", err)
	}
}

// Files have attributes on their way in, trees are listed in order, and composing
// consumes its sources.
func TestMoreFiles(t *testing.T) {
	s := newSite(t, "")
	ctx := context.Background()
	id := s.fork(t)
	for _, path := range []string{"/d/a", "/d/b/c", "/e"} {
		if err := s.c.WriteFile(ctx, id, path, strings.NewReader(path), client.WriteOptions{Parents: true, Attrs: map[string]string{"k": "v=w"}}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.c.ListTree(ctx, id, "/", 2)
	var paths []string
	for _, f := range list {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); err != nil || got != "/d /d/a /d/b /e" {
		t.Errorf("%s, %v", got, err)
	}
	f, err := s.c.ComposeFile(ctx, id, client.ComposeRequest{Target: "/all", Sources: []string{"/e", "/d/a"}, Mode: "0600"})
	if err != nil || f.Size != 6 || f.Mode != "0600" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := s.c.StatFile(ctx, id, "/e"); !client.IsCode(err, "not_found") {
		t.Errorf("a source is still there: %v", err)
	}
	if u, err := s.c.User(ctx, id, "root"); err != nil || u.Home != "/root" {
		t.Errorf("%+v, %v", u, err)
	}
}

var _ Manager = (*sandbox.Manager)(nil)
