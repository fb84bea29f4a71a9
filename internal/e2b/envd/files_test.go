package envd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/forkd-dev/forkd/internal/e2b/envd/rpc/filesystempb"
	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

func emptyRequest(t testing.TB) *http.Request {
	r, err := http.NewRequest(http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func zipped(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, s); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func unzipped(t *testing.T, s string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDownload(t *testing.T) {
	s := newSite(t)
	const content = "line\r\n\x00\xff\xef\xbb\xbf"
	s.put(t, "/home/user/häß 😀.bin", content)
	s.put(t, "/home/user/empty.txt", "")
	file := "/files?path=" + url.QueryEscape("häß 😀.bin")
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		body       string
		want       map[string]string
	}{
		{"plain", file, nil, 200, content, map[string]string{"Content-Length": strconv.Itoa(len(content)), "Content-Encoding": "",
			"Content-Type": "application/octet-stream", "Vary": "Accept-Encoding", "Accept-Ranges": "bytes",
			"Content-Disposition": "inline; filename*=utf-8''h%C3%A4%C3%9F%20%F0%9F%98%80.bin"}},
		{"empty", "/files?path=empty.txt", nil, 200, "", map[string]string{"Content-Length": "0", "Content-Type": "text/plain; charset=utf-8"}},
		{"named user", file + "&username=user", nil, 200, content, nil},
		{"browser", file, []string{"Accept-Encoding", "gzip, deflate, br"}, 200, content, map[string]string{"Content-Encoding": ""}},
		{"range", file, []string{"Range", "bytes=4-6"}, 206, content[4:7], map[string]string{"Content-Range": fmt.Sprintf("bytes 4-6/%d", len(content))}},
		{"end", file, []string{"Range", "bytes=-3"}, 206, content[len(content)-3:], nil},
		{"from", file, []string{"Range", "bytes=6-", "Accept-Encoding", "gzip"}, 206, content[6:], map[string]string{"Content-Encoding": ""}},
		{"beyond", file, []string{"Range", "bytes=900-"}, 416, "invalid range: failed to overlap\n", nil},
		{"not changed", file, []string{"If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, 304, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := s.do(t, http.MethodGet, c.path, "", c.header...)
			if resp.StatusCode != c.status || body != c.body {
				t.Errorf("%s %q, want %d %q", resp.Status, body, c.status, c.body)
			}
			for k, v := range c.want {
				if got := resp.Header.Get(k); got != v {
					t.Errorf("%s: %q, want %q", k, got, v)
				}
			}
		})
	}
	resp, body := s.do(t, http.MethodGet, file, "", "Range", "bytes=0-1,5-6")
	if resp.StatusCode != 206 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "multipart/byteranges") || !strings.Contains(body, "\r\nli\r\n") {
		t.Errorf("several ranges: %s %q", resp.Status, body)
	}
	for _, accept := range []string{"gzip", "GZIP;q=0.5", "gzip, identity;q=0", "*, identity;q=0"} {
		resp, body := s.do(t, http.MethodGet, file, "", "Accept-Encoding", accept)
		if resp.Header.Get("Content-Encoding") != "gzip" || unzipped(t, body) != content {
			t.Errorf("%s: %s %q", accept, resp.Status, body)
		}
	}
}

func TestDownloadErrors(t *testing.T) {
	s := newSite(t)
	s.put(t, "/home/user/f", "x")
	for _, c := range []struct {
		query  string
		header []string
		status int
		text   string
	}{
		{"path=gone", nil, 404, "path '/home/user/gone' does not exist"},
		{"path=.", nil, 400, "path '/home/user' is a directory"},
		{"", nil, 400, "path '/home/user' is a directory"},
		{"path=~ann", nil, 400, `path "~ann": cannot expand user-specific home dir`},
		{"path=f&username=stranger", nil, 401, "invalid username: 'stranger'"},
		{"path=/home/user/f&username=stranger", nil, 401, "invalid username: 'stranger'"},
		{"path=/home/user/f&username=", nil, 401, "invalid username: ''"},
		{"path=f", []string{"Accept-Encoding", "br, identity;q=0"}, 406, "no acceptable encoding found, supported: gzip and, for ranges and conditions, identity"},
		{"path=f", []string{"Accept-Encoding", "gzip, *;q=0", "Range", "bytes=0-0"}, 406, "no acceptable encoding found, supported: gzip and, for ranges and conditions, identity"},
	} {
		resp, body := s.do(t, http.MethodGet, "/files?"+c.query, "", c.header...)
		wantError(t, resp, body, c.status, c.text)
	}
}

// TestBrokenDownload: a file that could not be read to its end is not taken for a
// shorter one.
func TestBrokenDownload(t *testing.T) {
	s := newSite(t)
	s.put(t, "/home/user/broken", strings.Repeat("x", 100_000))
	s.host.cut = true
	for _, accept := range []string{"identity", "gzip"} {
		req := emptyRequest(t)
		req.URL, _ = url.Parse(s.URL + "/files?path=broken")
		req.Header.Set("Accept-Encoding", accept)
		resp, err := s.Client().Do(req)
		if err != nil {
			continue // cut ahead of the first byte
		}
		if b, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: %s, %d bytes without an error", accept, resp.Status, len(b))
		}
		resp.Body.Close()
	}
}

type uploaded []struct {
	Path, Name, Type string
	Metadata         map[string]string
}

func form(t *testing.T, parts ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 3 {
		part, err := w.CreateFormFile(parts[i], parts[i+1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(part, parts[i+2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

func TestUpload(t *testing.T) {
	s := newSite(t)
	several, severalKind := form(t, "note", "n", "skipped", "file", "new/a.txt", "A", "file", "/root/häß.txt", "B\x00\xff")
	one, oneKind := form(t, "file", "x.txt", "one")
	const raw = "application/octet-stream"
	for _, c := range []struct {
		name, query, body string
		header            []string
		files             map[string]string
	}{
		{"several", "", several, []string{"Content-Type", severalKind}, map[string]string{"/home/user/new/a.txt": "A", "/root/häß.txt": "B\x00\xff"}},
		{"one with path", "path=p/q.txt", one, []string{"Content-Type", oneKind}, map[string]string{"/home/user/p/q.txt": "one"}},
		{"raw", "path=/home/user/raw.bin", "\x00raw", []string{"Content-Type", raw}, map[string]string{"/home/user/raw.bin": "\x00raw"}},
		{"overwritten", "path=raw.bin", "", []string{"Content-Type", raw}, map[string]string{"/home/user/raw.bin": ""}},
		{"compressed", "path=z", zipped(t, "plain"), []string{"Content-Type", raw, "Content-Encoding", "gzip"}, map[string]string{"/home/user/z": "plain"}},
		{"compressed form", "", zipped(t, one), []string{"Content-Type", oneKind, "Content-Encoding", "gzip"}, map[string]string{"/home/user/x.txt": "one"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := s.do(t, http.MethodPost, "/files?"+c.query, c.body, c.header...)
			var list uploaded
			if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 || len(list) != len(c.files) {
				t.Fatal(resp.Status, body, err)
			}
			for _, f := range list {
				want, ok := c.files[f.Path]
				if !ok || f.Name != path.Base(f.Path) || f.Type != "file" || f.Metadata != nil {
					t.Errorf("answered %+v", f)
				}
				if got := s.get(t, f.Path); got != want {
					t.Errorf("%s is %q, want %q", f.Path, got, want)
				}
				if o := s.host.written[f.Path]; o.User != "user" || !o.Parents || o.Mode != nil || o.Attrs != nil {
					t.Errorf("written with %+v", o)
				}
			}
		})
	}
}

func TestUploadMetadata(t *testing.T) {
	s := newSite(t)
	resp, body := s.do(t, http.MethodPost, "/files?path=f&username=root", "x", "Content-Type", "application/octet-stream",
		"X-Metadata-Kind", "a b", "x-metadata-own.key", "1")
	want := map[string]string{"kind": "a b", "own.key": "1"}
	var list uploaded
	if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 || !maps.Equal(list[0].Metadata, want) {
		t.Fatal(resp.Status, body, err)
	}
	if o := s.host.written["/root/f"]; o.User != "root" || !maps.Equal(o.Attrs, map[string]string{"e2b.kind": "a b", "e2b.own.key": "1"}) {
		t.Errorf("%+v", o)
	}
}

func TestUploadErrors(t *testing.T) {
	s := newSite(t)
	s.put(t, "/home/user/d/x", "")
	twice, kind := form(t, "file", "same", "1", "file", "/home/user/same", "2")
	two, twoKind := form(t, "file", "1", "1", "file", "2", "2")
	nameless := strings.Replace(twice, `; filename="same"`, "", 1)
	const raw = "application/octet-stream"
	for _, c := range []struct {
		name, query, body string
		header            []string
		status            int
		text              string
	}{
		{"no type", "path=f", "x", nil, 400, "unsupported content type: , expected multipart/form-data or application/octet-stream"},
		{"no boundary", "path=f", "x", []string{"Content-Type", "multipart/form-data"}, 400, "unsupported content type: multipart/form-data, expected multipart/form-data or application/octet-stream"},
		{"no path", "", "x", []string{"Content-Type", raw}, 400, "path query parameter is required for raw body upload"},
		{"directory", "path=d", "x", []string{"Content-Type", raw}, 400, "path is a directory: /home/user/d"},
		{"user", "path=/f&username=ann", "x", []string{"Content-Type", raw}, 401, "invalid username: 'ann'"},
		{"full", "path=/full/f", "x", []string{"Content-Type", raw}, 507, "not enough disk space available"},
		{"no gzip", "path=f", "x", []string{"Content-Type", raw, "Content-Encoding", "gzip"}, 400, "error decompressing request body: unexpected EOF"},
		{"cut gzip", "path=f", zipped(t, strings.Repeat("x", 1000))[:20], []string{"Content-Type", raw, "Content-Encoding", "gzip"}, 400, "error reading the upload: unexpected EOF"},
		{"coding", "path=f", "x", []string{"Content-Type", raw, "Content-Encoding", "br"}, 400, `unsupported Content-Encoding: "br", supported: gzip`},
		{"twice", "", twice, []string{"Content-Type", kind}, 400, "you cannot upload multiple files to the same path '/home/user/same' in one upload request, only the first specified file was uploaded"},
		{"cut content", "", two[:len(two)-10], []string{"Content-Type", twoKind}, 400, "error reading the upload: unexpected EOF"},
		{"no name", "", nameless, []string{"Content-Type", kind}, 400, "a part of the form has no filename, and there is no path query parameter"},
		{"metadata", "path=f", "x", []string{"Content-Type", raw, "X-Metadata-K", strings.Repeat("v", 5000)}, 400, "invalid metadata: total metadata size 5010 exceeds 4096 bytes"},
		{"metadata key", "path=f", "x", []string{"Content-Type", raw, "X-Metadata-" + strings.Repeat("k", 300), "v"}, 400,
			fmt.Sprintf("invalid metadata: metadata key %q exceeds 246 bytes", strings.Repeat("k", 300))},
		{"metadata bytes", "path=f", "x", []string{"Content-Type", raw, "X-Metadata-K", "ä"}, 400, `invalid metadata: metadata key "k" or its value contains non-printable-ASCII bytes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := s.do(t, http.MethodPost, "/files?"+c.query, c.body, c.header...)
			wantError(t, resp, body, c.status, c.text)
		})
	}
	if s.get(t, "/home/user/f") != "(missing)" {
		t.Error("a failed upload has left a file")
	}
}

func TestCompose(t *testing.T) {
	s := newSite(t)
	s.put(t, "/home/user/1", "a")
	s.put(t, "/home/user/2", "b")
	resp, body := s.do(t, http.MethodPost, "/files/compose", `{"source_paths":["1","~/2"],"destination":"out/both","username":"user"}`)
	if resp.StatusCode != 200 || strings.TrimSpace(body) != `{"path":"/home/user/out/both","name":"both","type":"file"}` {
		t.Error(resp.Status, body)
	}
	if s.get(t, "/home/user/out/both") != "ab" || s.get(t, "/home/user/1") != "(missing)" {
		t.Error("not composed")
	}
	for _, c := range []struct {
		body   string
		status int
		text   string
	}{
		{`{`, 400, "invalid request body: unexpected EOF"},
		{`{}`, 400, "source_paths must not be empty"},
		{`{"source_paths":["a"]}`, 400, "destination is required"},
		{`{"source_paths":["out/both"],"destination":"/home/user/out/both"}`, 400, `source path "out/both" cannot be the same as destination`},
		{`{"source_paths":["gone"],"destination":"x"}`, 404, "no such file: open " + s.hostPath("/home/user/gone") + ": no such file or directory"},
		{`{"source_paths":["out/both"],"destination":"x","username":"ann"}`, 401, "invalid username: 'ann'"},
	} {
		resp, body := s.do(t, http.MethodPost, "/files/compose", c.body)
		wantError(t, resp, body, c.status, c.text)
	}
}

func TestFacts(t *testing.T) {
	s := newSite(t)
	resp, body := s.do(t, http.MethodGet, "/health", "")
	if resp.StatusCode != 204 || body != "" {
		t.Error(resp.Status, body)
	}
	resp, body = s.do(t, http.MethodGet, "/envs", "")
	if resp.StatusCode != 200 || strings.TrimSpace(body) != `{"GREETING":"hello"}` {
		t.Error(resp.Status, body)
	}
	resp, body = s.do(t, http.MethodGet, "/metrics", "")
	var m map[string]float64
	if err := json.Unmarshal([]byte(body), &m); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.Status, body, err)
	}
	for _, key := range []string{"ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"} {
		if _, ok := m[key]; !ok {
			t.Errorf("no %s", key)
		}
	}
	for _, path := range []string{"/init", "/process.Process/Nothing", "/"} {
		resp, _ := s.do(t, http.MethodPost, path, "{}")
		if resp.StatusCode != 404 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// TestAccess tries everything without a token, with a wrong one and with the right
// one.
func TestAccess(t *testing.T) {
	s := newSite(t)
	s.rec = front.Record{EnvdToken: token}
	s.put(t, "/home/user/f", "x")
	for _, c := range []struct {
		method, path, kind string
		open               bool
	}{
		{"GET", "/health", "", true}, {"POST", "/health", "", false}, {"GET", "/metrics", "", false}, {"GET", "/envs", "", false}, {"POST", "/files/compose", "", false},
		{"POST", "/process.Process/List", "application/json", false}, {"POST", "/process.Process/List", "application/grpc-web", false},
		{"POST", "/filesystem.Filesystem/Stat", "application/proto", false}, {"GET", "/files?path=f", "", false}, {"HEAD", "/files?path=f", "", false},
		{"POST", "/files?path=f", "application/octet-stream", false}, {"PUT", "/files?path=f", "", false}, {"GET", "/x", "", false},
	} {
		for given, admitted := range map[string]bool{"": c.open, token[:8]: c.open, token + "0": c.open, token: true} {
			header := []string{"Content-Type", c.kind}
			if given != "" {
				header = append(header, tokenHeader, given)
			}
			if resp, _ := s.do(t, c.method, c.path, "{}", header...); (resp.StatusCode != 401) != admitted {
				t.Errorf("%s %s with %q: %s", c.method, c.path, given, resp.Status)
			}
		}
	}
}

func TestSignatures(t *testing.T) {
	s := newSite(t)
	s.rec = front.Record{EnvdToken: token}
	s.put(t, "/home/user/f", "x")
	query := func(path, operation, user string, in time.Duration) string {
		q := url.Values{"path": {path}}
		expiration := ""
		if in != 0 {
			expiration = strconv.FormatInt(time.Now().Add(in).Unix(), 10)
			q.Set("signature_expiration", expiration)
		}
		if user != "" {
			q.Set("username", user)
		}
		q.Set("signature", front.Signature(path, operation, user, token, expiration))
		return "/files?" + q.Encode()
	}
	const raw = "application/octet-stream"
	for _, c := range []struct {
		name, method, path string
		status             int
		text               string
	}{
		{"read", "GET", query("f", "read", "", 0), 200, ""},
		{"read as user", "GET", query("f", "read", "user", time.Hour), 200, ""},
		{"write", "POST", query("g", "write", "user", time.Hour), 200, ""},
		{"expired", "GET", query("f", "read", "", -time.Hour), 401, "signature is already expired"},
		{"other operation", "GET", query("f", "write", "", 0), 401, "invalid signature"},
		{"other path", "GET", strings.Replace(query("f", "read", "", 0), "path=f", "path=g", 1), 401, "invalid signature"},
		{"other user", "GET", query("f", "read", "user", 0) + "&username=root", 200, ""}, // the first counts, for all
		{"added user", "GET", query("f", "read", "", 0) + "&username=root", 401, "invalid signature"},
		{"prolonged", "GET", query("f", "read", "", 0) + "&signature_expiration=99999999999", 401, "invalid signature"},
		{"none", "GET", "/files?path=f", 401, "missing signature query parameter"},
		{"empty", "GET", "/files?path=f&signature=", 401, "invalid signature"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := s.do(t, c.method, c.path, "x", "Content-Type", raw)
			if c.status != 200 {
				wantError(t, resp, body, c.status, c.text)
			} else if resp.StatusCode != 200 {
				t.Error(resp.Status, body)
			}
		})
	}
	resp, body := s.do(t, "GET", query("f", "read", "", 0), "", tokenHeader, "wrong")
	wantError(t, resp, body, 401, "access token present in header but does not match")
}

func mkdir(path string) *pb.MakeDirRequest { return &pb.MakeDirRequest{Path: path} }

func TestWorkdir(t *testing.T) {
	s := newSite(t)
	s.rec = front.Record{User: "root", Workdir: "/home"}
	if _, err := s.files().MakeDir(t.Context(), mkdir("x")); err != nil {
		t.Fatal(err)
	}
	if s.get(t, "/root/x/nothing") != "(missing)" || s.host.made.User != "root" {
		t.Errorf("%+v", s.host.made)
	}
	if resp, err := s.files().Stat(t.Context(), &pb.StatRequest{}); err != nil || resp.Entry.Path != "/home" {
		t.Error(resp, err)
	}
	if tr := start(t.Context(), t, s.processes(), shell("pwd")); !strings.HasSuffix(tr.stdout, "/home\n") {
		t.Errorf("%+v", tr)
	}
}

// zeros is a reader of so many zero bytes.
func zeros(size int64) io.Reader { return io.LimitReader(zero{}, size) }

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// sink is a domain that takes and gives a large file and keeps nothing of it.
type sink struct {
	Host
	size int64
	seen int64 // bytes written so far
}

func (s *sink) StatFile(context.Context, string, string) (*sandbox.FileInfo, error) {
	return &sandbox.FileInfo{Name: "f", Path: "/f", Size: s.size}, nil
}

func (s *sink) ReadFile(_ context.Context, _, _ string, offset, length int64, w io.Writer) error {
	_, err := io.Copy(w, zeros(length))
	return err
}

func (s *sink) WriteFile(_ context.Context, _, _ string, r io.Reader, _ sandbox.WriteOptions) error {
	n, err := io.Copy(io.Discard, r)
	s.seen += n
	return err
}

// TestMemory: a file goes through in pieces in either direction.
func TestMemory(t *testing.T) {
	const size = 64 << 20
	host := &sink{size: size}
	service := New(host)
	defer service.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service.ServeHTTP(w, r.WithContext(front.WithTarget(r.Context(), &front.Target{ID: "sb000000000001"})))
	}))
	defer server.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, err := http.Post(server.URL+"/files?path=/f", "application/octet-stream", zeros(size))
	if err != nil || resp.StatusCode != 200 || host.seen != size {
		t.Fatal(resp, err, host.seen)
	}
	resp.Body.Close()
	body, w := io.Pipe()
	mp := multipart.NewWriter(w)
	go func() {
		part, err := mp.CreateFormFile("file", "/f")
		if err == nil {
			_, err = io.Copy(part, zeros(size))
		}
		mp.Close()
		w.CloseWithError(err)
	}()
	resp, err = http.Post(server.URL+"/files", mp.FormDataContentType(), body)
	if err != nil || resp.StatusCode != 200 || host.seen != 2*size {
		t.Fatal(resp, err, host.seen)
	}
	resp.Body.Close()
	resp, err = (&http.Client{Transport: &http.Transport{DisableCompression: true}}).Get(server.URL + "/files?path=/f")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if err != nil || n != size {
		t.Fatal(n, err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("%d MiB were allocated for 192 MiB that went through", grown>>20)
	}
}

func FuzzPath(f *testing.F) {
	for _, p := range []string{"", "~", "~/x", "~x", "a/../../..", "/a//b", "\x00", "~\\x", "../../etc", "\xff"} {
		f.Add(p, true)
		f.Add(p, false)
	}
	f.Fuzz(func(t *testing.T, given string, named bool) {
		c := &call{host: &fakeHost{}, target: &front.Target{}, user: "user", named: named}
		got, err := c.path(t.Context(), given)
		switch {
		case err != nil:
			if !strings.Contains(given, "\x00") && !strings.HasPrefix(given, "~") {
				t.Fatalf("%q: %v", given, err)
			}
		case !path.IsAbs(got) || strings.Contains(got, "\x00"):
			t.Fatalf("%q became %q", given, got)
		case path.IsAbs(given) && got != given:
			t.Fatalf("%q became %q", given, got)
		case !path.IsAbs(given) && !strings.Contains(given, "..") && !strings.HasPrefix(got, "/home/user"):
			t.Fatalf("%q became %q", given, got)
		}
	})
}

func FuzzUpload(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx\r\n--b--\r\n"), "multipart/form-data; boundary=b", "")
	f.Add([]byte("--b\r\n\r\n--b--"), "multipart/mixed; boundary=b", "")
	f.Add([]byte("x"), "application/octet-stream", "gzip")
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00"), "application/octet-stream", "gzip")
	service := New(&sink{Host: &fakeHost{}})
	f.Fuzz(func(t *testing.T, body []byte, kind, coding string) {
		r := httptest.NewRequest(http.MethodPost, "/files?path=/f", bytes.NewReader(body))
		r.Header = http.Header{"Content-Type": {kind}, "Content-Encoding": {coding}}
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r.WithContext(front.WithTarget(r.Context(), &front.Target{})))
		if w.Code != 200 && w.Code != 400 && w.Code != 401 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		var list []json.RawMessage
		if w.Code == 200 && (json.Unmarshal(w.Body.Bytes(), &list) != nil || list == nil) {
			t.Fatalf("%s", w.Body)
		}
	})
}

func FuzzSignature(f *testing.F) {
	f.Add("path=f&signature=v1_x")
	f.Add("path=f&signature=" + url.QueryEscape(front.Signature("f", "read", "", token, "")))
	f.Add("path=a:read&signature_expiration=1&username=%zz")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		c := &call{target: &front.Target{Record: front.Record{EnvdToken: token}}}
		admitted := c.admitFile(emptyRequest(t), q, time.Now()) == nil
		want := front.Signature(q.Get("path"), "read", q.Get("username"), token, q.Get("signature_expiration"))
		if admitted && q.Get("signature") != want {
			t.Fatalf("%q was admitted", query)
		}
	})
}

func TestAccepted(t *testing.T) {
	for header, want := range map[string]acceptable{
		"":                   {identity: true},
		"gzip":               {gzip: true, identity: true, only: true},
		"gzip;q=0":           {identity: true},
		"br":                 {identity: true},
		"*":                  {gzip: true, identity: true},
		"*;q=0":              {},
		"*;q=0, gzip":        {gzip: true},
		"identity;q=0":       {},
		"identity, *;q=0":    {identity: true},
		" GZip ; q=0.1 , br": {gzip: true, identity: true},
		"gzip;q=x":           {gzip: true, identity: true, only: true},
	} {
		if got := accepted(header); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", header, got, want)
		}
	}
}
