package ports

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

var errClosed = errors.New("nobody listens")

// guest is a sandbox with one server; it counts the connections to it.
type guest struct {
	addr  string
	dials atomic.Int64
}

func (g *guest) DialPort(ctx context.Context, id string, port int) (net.Conn, error) {
	if id != "sb0" || port != 3000 {
		return nil, errClosed
	}
	g.dials.Add(1)
	return new(net.Dialer).DialContext(ctx, "tcp", g.addr)
}

// site is a proxy before a guest in which h serves port 3000 of sb0.
func site(t *testing.T, target Target, h http.Handler) (url string, g *guest) {
	t.Helper()
	inside := httptest.NewUnstartedServer(h)
	if target.TLS {
		inside.StartTLS()
	} else {
		inside.Start()
	}
	t.Cleanup(inside.Close)
	g = &guest{addr: inside.Listener.Addr().String()}
	p := New(g, Options{
		Fail: func(w http.ResponseWriter, _ *http.Request, t Target, err error) {
			http.Error(w, fmt.Sprintf("%s:%d: %v", t.ID, t.Port, err), http.StatusBadGateway)
		},
		Strip: func(h http.Header) { h.Del("X-Secret") },
	})
	t.Cleanup(p.Close)
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.Serve(w, r, target) }))
	t.Cleanup(outside.Close)
	return outside.URL, g
}

var there = Target{ID: "sb0", Port: 3000}

func TestRequestAsItCame(t *testing.T) {
	url, _ := site(t, there, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s host=%s agent=%q enc=%q own=%q secret=%q conn=%q proto=%s for=%q body=%s",
			r.Method, r.RequestURI, r.Host, r.UserAgent(), r.Header.Get("Accept-Encoding"), r.Header.Get("Authorization"),
			r.Header.Get("X-Secret"), r.Header.Get("X-Hop"), r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-For"), body)
	}))
	req, _ := http.NewRequest("PATCH", url+"/a%2Fb//c/../d?x=1;y=%zz&&", strings.NewReader("hello"))
	req.Host = "3000-sb0.example.com"
	req.Header.Set("Accept-Encoding", "br")
	req.Header.Set("User-Agent", "")
	req.Header.Set("Authorization", "Bearer app")
	req.Header.Set("X-Secret", "of the daemon")
	req.Header.Set("X-Hop", "for the proxy only")
	req.Header.Set("Connection", "X-Hop")
	req.Header.Set("X-Forwarded-Proto", "https")
	req.Header.Set("X-Forwarded-For", "192.0.2.7")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	want := `PATCH /a%2Fb//c/../d?x=1;y=%zz&& host=3000-sb0.example.com agent="" enc="br" own="Bearer app" secret="" conn="" proto=https for="192.0.2.7, 127.0.0.1" body=hello`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestMaskedHost(t *testing.T) {
	target := there
	target.Host = "localhost:3000"
	url, _ := site(t, target, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }))
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != "localhost:3000" {
		t.Errorf("the server saw the host %q", text)
	}
}

// TestContained: a page from a guest cannot act as one of the daemon's, whatever
// it says of itself.
func TestContained(t *testing.T) {
	for _, contained := range []bool{true, false} {
		target := there
		target.Contained = contained
		url, _ := site(t, target, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", "default-src *")
		}))
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		policies := resp.Header.Values("Content-Security-Policy")
		if got := len(policies) == 2 && policies[1] == containment; got != contained {
			t.Errorf("contained %v: policies %q", contained, policies)
		}
	}
}

func TestTLS(t *testing.T) {
	target := there
	target.TLS = true
	url, _ := site(t, target, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS != nil) }))
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != "true" {
		t.Errorf("got %q", text)
	}
}

// TestStream: each event arrives before the next is sent.
func TestStream(t *testing.T) {
	next := make(chan struct{})
	url, _ := site(t, there, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	}))
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) {
			t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
		}
		lines.Scan()
		next <- struct{}{}
	}
}

// TestUpload: what is sent arrives before the body ends.
func TestUpload(t *testing.T) {
	got := make(chan string)
	url, _ := site(t, there, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 5)
		for {
			n, err := io.ReadFull(r.Body, buf)
			if n > 0 {
				got <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}))
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		resp, err := http.Post(url, "text/plain", r)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	for _, part := range []string{"first", "other"} {
		io.WriteString(w, part)
		if s := <-got; s != part {
			t.Fatalf("got %q, want %q", s, part)
		}
	}
	w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWebSocket(t *testing.T) {
	url, g := site(t, there, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"echo"}, InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(2 << 20)
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, url+"/ws", &websocket.DialOptions{Subprotocols: []string{"echo"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if c.Subprotocol() != "echo" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	c.SetReadLimit(2 << 20)
	big := make([]byte, 1<<20)
	rand.Read(big)
	for _, want := range [][]byte{[]byte("hello"), {}, big} {
		if err := c.Write(ctx, websocket.MessageBinary, want); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back as %d: %v", len(want), len(got), err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Error(err)
	}
	if n := g.dials.Load(); n != 1 {
		t.Errorf("%d connections for one", n)
	}
}

// TestConnectionsAreKept: requests in a row share a connection, and those at once
// do not wait for each other.
func TestConnectionsAreKept(t *testing.T) {
	var inside atomic.Int64
	all := make(chan struct{})
	url, g := site(t, there, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/at-once" && inside.Add(1) == 20 {
			close(all)
		}
		if r.URL.Path == "/at-once" {
			<-all
		}
		io.WriteString(w, "ok")
	}))
	get := func(path string) error {
		resp, err := http.Get(url + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	for range 10 {
		if err := get("/"); err != nil {
			t.Fatal(err)
		}
	}
	if n := g.dials.Load(); n != 1 {
		t.Errorf("10 requests in a row took %d connections", n)
	}
	errs := make(chan error)
	for range 20 {
		go func() { errs <- get("/at-once") }()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		target Target
		want   string
	}{
		"closed port":       {Target{ID: "sb0", Port: 9}, "nobody listens"},
		"port 0":            {Target{ID: "sb0"}, ErrTarget.Error()},
		"port out of range": {Target{ID: "sb0", Port: 65536}, ErrTarget.Error()},
		"no id":             {Target{Port: 80}, ErrTarget.Error()},
		"id with a colon":   {Target{ID: "sb0:1", Port: 80}, ErrTarget.Error()},
		"id with a slash":   {Target{ID: "sb0/..", Port: 80}, ErrTarget.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := site(t, c.target, http.NotFoundHandler())
			resp, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != 502 || !strings.Contains(string(text), c.want) {
				t.Errorf("%s %s", resp.Status, text)
			}
		})
	}
}

// TestHostile: a server in a guest that breaks the rules harms nobody else.
func TestHostile(t *testing.T) {
	raw := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, answer)
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"no HTTP":         raw("\x00\xff\x00\xff\r\n\r\n"),
		"hangs up":        raw(""),
		"endless header":  raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"),
		"two lengths":     raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
		"upgrade unasked": raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := site(t, there, h)
			resp, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 502 {
				t.Errorf("status %s", resp.Status)
			}
		})
	}
	t.Run("breaks off", func(t *testing.T) {
		url, _ := site(t, there, raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"))
		resp, err := http.Get(url)
		if err != nil {
			return // it was aborted before anything was passed on
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("half an answer was passed on as a whole one")
		}
	})
}

// TestClientGoesAway: the server in the guest learns of it.
func TestClientGoesAway(t *testing.T) {
	gone := make(chan struct{})
	url, _ := site(t, there, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the server was not told")
	}
}
