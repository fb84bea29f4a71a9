package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// server starts a server in a sandbox and waits until it listens.
func (d *daemon) server(t *testing.T, id, script string, port int) {
	t.Helper()
	if _, err := d.SpawnProcess(limited(t, patience), id, client.ProcessRequest{Args: []string{"python3", "-c", script}, Tag: "server"}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := d.DialPort(limited(t, patience), id, port)
		if err == nil {
			conn.Close()
			return
		}
		if !client.IsCode(err, "port_closed") || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A bare connection to a port carries bytes both ways as they are, and each way ends by
// itself; a server that listens on IPv6 alone is reached, too.
func TestPortConnections(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	_, err := d.DialPort(limited(t, patience), id, 7000)
	wantCode(t, err, "port_closed", "7000")
	d.server(t, id, `
import socket, threading
def serve(family, address):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, 7000 if family == socket.AF_INET else 7001)); s.listen()
    while True:
        c, _ = s.accept()
        data = b""
        while chunk := c.recv(65536): data += chunk
        c.sendall(data[::-1]); c.close()
threading.Thread(target=serve, args=(socket.AF_INET6, "::1")).start()
serve(socket.AF_INET, "127.0.0.1")
`, 7000)
	sent := bytes.Repeat([]byte("0123456789abcdef\x00\xff"), 60_000)
	want := bytes.Clone(sent)
	for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
		want[i], want[j] = want[j], want[i]
	}
	for _, port := range []int{7000, 7001} {
		conn, err := d.DialPort(limited(t, patience), id, port)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn.Write(sent)
			conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, want) {
			t.Errorf("port %d: %d of %d bytes came back, %v", port, len(got), len(want), err)
		}
		conn.Close()
	}
}

// Requests reach an HTTP server in a sandbox, also after a pause, which the request
// itself may end; and forkd port-forward makes a port here of it.
func TestHTTPPorts(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.forkWith(t, client.ForkRequest{SnapshotTag: tag, AutoResume: true})[0]
	d.sh(t, id, "mkdir /srv/www; echo hello > /srv/www/index.html")
	d.server(t, id, `
import http.server, os, socket, struct
os.chdir("/srv/www")
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nhalf a wo")
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`, 8000)
	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", client.Socket(d.home))
	}}}
	get := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "GET", "http://localhost/v1/sandboxes/"+id+"/ports/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := local.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, text := get("8000/"); status != 200 || text != "hello\n" {
		t.Errorf("%d %q", status, text)
	}
	if status, _ := get("8000/nothing"); status != 404 {
		t.Errorf("status %d", status)
	}
	resp, err := local.Post("http://localhost/v1/sandboxes/"+id+"/ports/8000/", "", nil)
	if err == nil { // or not even the header got through
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
	}
	if err == nil {
		t.Error("an answer that was cut short looks whole")
	}
	if status, text := get("8001/"); status != 502 || !strings.Contains(text, `"code":"port_closed"`) {
		t.Errorf("%d %q", status, text)
	}
	d.pause(t, id)
	if status, text := get("8000/index.html"); status != 200 || text != "hello\n" {
		t.Errorf("after a pause %d %q", status, text)
	}
}

// A watch tells of what happens in a guest, in order.
func TestWatchingFiles(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.sh(t, id, "mkdir -p /root/w/sub")
	w, err := d.Watch(limited(t, patience), id, "/root/w", client.WatchOptions{Recursive: true, Entries: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d.sh(t, id, "cd /root/w; echo hi > a; chmod 600 a; mv a sub/b; rm sub/b; mkdir -p new/deep; sleep 0.1; touch new/deep/x")
	seen := make(map[string]bool)
	for !seen["create new/deep/x"] {
		e, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seen[string(e.Kind)+" "+e.Name] = true
		if e.Entry != nil && e.Entry.Path != "/root/w/"+e.Name {
			t.Errorf("%+v", e.Entry)
		}
	}
	for _, want := range []string{"create a", "write a", "chmod a", "rename a", "create sub/b", "remove sub/b", "create new"} {
		if !seen[want] {
			t.Errorf("%q was not told: %v", want, seen)
		}
	}
	d.pause(t, id)
	for {
		if _, err := w.Recv(); err != nil {
			wantCode(t, err, "paused", "")
			break
		}
	}
	_, err = d.Watch(limited(t, patience), id, "/root", client.WatchOptions{})
	wantCode(t, err, "paused", "")
	d.resume(t, id)
	_, err = d.Watch(limited(t, patience), id, "/nowhere", client.WatchOptions{})
	wantCode(t, err, "not_found", "")
}

// Owners, attributes, trees and composed files.
func TestFilesOfOwners(t *testing.T) {
	d := shared(t)
	ctx := limited(t, patience)
	id := d.fork(t, 1)[0]
	for _, path := range []string{"/root/t/a", "/root/t/b/c", "/root/t/b-", "/root/t/b/d/e"} {
		err := d.WriteFile(ctx, id, path, strings.NewReader(path), client.WriteOptions{Parents: true, User: "nobody", Attrs: map[string]string{"from": "here=\xff"}})
		if err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.ListTree(ctx, id, "/root/t", 2)
	var paths []string
	for _, f := range list {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); err != nil || got != "/root/t/a /root/t/b /root/t/b/c /root/t/b/d /root/t/b-" {
		t.Errorf("%s, %v", got, err)
	}
	f, err := d.ComposeFile(ctx, id, client.ComposeRequest{Target: "/root/all", Sources: []string{"/root/t/a", "/root/t/b/c"}, User: "nobody"})
	if err != nil || f.Size != int64(len("/root/t/a/root/t/b/c")) || f.Owner != "nobody" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err = d.StatFile(ctx, id, "/root/t/b-"); err != nil || f.Owner != "nobody" || len(f.Attrs) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	u, err := d.User(ctx, id, "nobody")
	if err != nil || u.Name != "nobody" || u.UID == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	_, err = d.User(ctx, id, "nosuchuser")
	wantCode(t, err, "not_found", "nosuchuser")
	m, err := d.SandboxMetrics(ctx, id)
	if err != nil || m.VCPUs != 1 || m.MemTotalBytes < 256<<20 || m.MemUsedBytes < 1<<20 || m.DiskTotalBytes < 1<<30 || m.PrivateBytes == 0 || m.CPUPercent <= 0 || m.CPUPercent > 100 {
		t.Errorf("%+v, %v", m, err)
	}
}
