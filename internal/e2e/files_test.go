package e2e

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/client"
)

func (d *daemon) write(t *testing.T, id, path, text string, opts client.WriteOptions) {
	t.Helper()
	if err := d.WriteFile(limited(t, patience), id, path, strings.NewReader(text), opts); err != nil {
		t.Fatalf("writing %q: %v", path, err)
	}
}

func (d *daemon) read(t *testing.T, id, path string) string {
	t.Helper()
	r, err := d.ReadFile(limited(t, patience), id, path)
	if err != nil {
		t.Fatalf("reading %q: %v", path, err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("reading %q: %v", path, err)
	}
	return string(text)
}

// field case 059
func TestFilesComeBackAsTheyWere(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	var all strings.Builder
	for i := range 1 << 20 {
		all.WriteByte(byte(i * 31 >> 3))
	}
	for name, text := range map[string]string{
		"every byte": all.String(), "empty": "", "CRLF and BOM": "\xef\xbb\xbfa\r\nb\r\n", "NUL": "a\x00b", "one": "x",
	} {
		p := "/root/" + name
		d.write(t, id, p, text, client.WriteOptions{})
		if got := d.read(t, id, p); got != text {
			t.Errorf("%s: %d bytes came back of %d", name, len(got), len(text))
		}
		want := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
		if got := d.sh(t, id, "sha256sum < '"+p+"'"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: the guest has %q, want %s", name, got, want)
		}
		if info, err := d.StatFile(t.Context(), id, p); err != nil || info.Size != int64(len(text)) || info.Type != "file" || info.Mode != "0644" {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	part, err := d.ReadFileAt(t.Context(), id, "/root/every byte", 1000, 50)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if got, err := io.ReadAll(part); string(got) != all.String()[1000:1050] || err != nil {
		t.Errorf("a part: %q, %v", got, err)
	}
	d.write(t, id, "/root/every byte", "short now", client.WriteOptions{Mode: new(fs.FileMode(0o600))})
	if got := d.sh(t, id, "cat '/root/every byte'; stat -c ' %a' '/root/every byte'"); got != "short now 600\n" {
		t.Errorf("replaced: %q", got)
	}
}

// pattern makes n bytes that depend on their place.
type pattern struct{ at, n int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.at == p.n {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), p.n-p.at)]
	for i := range b {
		at := p.at + int64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16)
	}
	p.at += int64(len(b))
	return len(b), nil
}

func sum(h hash.Hash) string { return fmt.Sprintf("%x", h.Sum(nil)) }

// A file that is larger than the daemon may buffer goes up and down in a stream
// (field case 061).
func TestLargeFilesAreStreamed(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	const size = 200 << 20
	peak := d.peakRSS(t)
	sent := sha256.New()
	if err := d.WriteFile(t.Context(), id, "/root/big", io.TeeReader(&pattern{n: size}, sent), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if info, err := d.StatFile(t.Context(), id, "/root/big"); err != nil || info.Size != size {
		t.Errorf("%+v, %v", info, err)
	}
	r, err := d.ReadFile(t.Context(), id, "/root/big")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := sha256.New()
	if n, err := io.Copy(got, r); n != size || err != nil || sum(got) != sum(sent) {
		t.Errorf("%d bytes came back, %v, sum %s, want %s", n, err, sum(got), sum(sent))
	}
	// The guest keeps its page cache, up to its RAM, in the daemon's memory, and
	// its dirty blocks in a file that the daemon maps; the daemon's own buffers
	// come on top.
	info, err := d.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if grown := d.peakRSS(t) - peak; grown > int(info.PrivateKiB>>10)+128 {
		t.Errorf("the daemon grew by %d MiB, the sandbox holds %d MiB", grown, info.PrivateKiB>>10)
	}
}

// field case 064
func TestFilesBelongToWhomTheyAreWrittenFor(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	d.sh(t, id, "mkdir -p /home/u && chown nobody /home/u && mkdir /home/u/real && ln -s /etc /home/u/etc && ln -s /etc/hostname /home/u/link")
	d.write(t, id, "/home/u/new/dir/f", "text", client.WriteOptions{User: "nobody", Parents: true, Mode: new(fs.FileMode(0o640))})
	if got := d.sh(t, id, "stat -c '%U %a' /home/u/new/dir/f; stat -c %U /home/u/new /home/u/new/dir"); got != "nobody 640\nnobody\nnobody\n" {
		t.Errorf("owners: %q", got)
	}
	out, err := d.Exec(t.Context(), id, client.ExecRequest{Args: []string{"sh", "-c", "echo more >> /home/u/new/dir/f && cat /home/u/new/dir/f"}, User: "nobody"})
	if err != nil || out.Stdout != "textmore\n" {
		t.Errorf("appending as the owner: %+v, %v", out, err)
	}
	d.write(t, id, "/home/u/link", "replaced", client.WriteOptions{User: "nobody"})
	if got := d.sh(t, id, "stat -c %U /etc /etc/passwd; cat /etc/hostname"); got != "root\nroot\n"+id+"\n" {
		t.Errorf("a link's target was touched: %q", got)
	}
	err = d.WriteFile(t.Context(), id, "/root/none/f", strings.NewReader("x"), client.WriteOptions{})
	wantCode(t, err, "not_found", "/root/none")
	err = d.WriteFile(t.Context(), id, "/root", strings.NewReader("x"), client.WriteOptions{})
	wantCode(t, err, "invalid_argument", "/root")
	err = d.WriteFile(t.Context(), id, "/root/f", strings.NewReader("x"), client.WriteOptions{User: "nobody-such"})
	wantCode(t, err, "invalid_argument", "nobody-such")
}

// field case 067
func TestFileNamesOfAllKinds(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	const dir = "/root/names"
	if err := d.MakeDir(t.Context(), id, dir, client.MakeDirOptions{Mode: new(fs.FileMode(0o700))}); err != nil {
		t.Fatal(err)
	}
	if info, err := d.StatFile(t.Context(), id, dir); err != nil || info.Mode != "0700" {
		t.Errorf("made with a mode: %+v, %v", info, err)
	}
	names := []string{
		"a b", "ü☕", "%2e%2e", "a?b#c&d=e", "..x", "-rf", `"q"'`, "new\nline", "byte\xff", strings.Repeat("l", 255),
		"\u00e9", "e\u0301", "tab\t", "\x01\x7f", "$(touch x)", "*", "\\", " ", "+plus", "a;b", "\u202e",
	}
	for i, name := range names {
		p := path.Join(dir, name)
		d.write(t, id, p, fmt.Sprint(i), client.WriteOptions{})
		if got := d.read(t, id, p); got != fmt.Sprint(i) {
			t.Errorf("%q holds %q", name, got)
		}
		info, err := d.StatFile(t.Context(), id, p)
		if err != nil || whole(info.Name, info.NameB64) != name || whole(info.Path, info.PathB64) != p {
			t.Errorf("stat %q: %+v, %v", name, info, err)
		}
	}
	listed := make(map[string]bool)
	infos, err := d.ListFiles(t.Context(), id, dir)
	for _, info := range infos {
		listed[whole(info.Name, info.NameB64)] = true
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%q is not listed", name)
		}
	}
	if !slices.IsSortedFunc(infos, func(a, b client.FileInfo) int {
		return strings.Compare(whole(a.Name, a.NameB64), whole(b.Name, b.NameB64))
	}) {
		t.Error("the list is not in order")
	}
	if err != nil || len(infos) != len(names) {
		t.Errorf("%d of %d files are listed, %v", len(infos), len(names), err)
	}
	if got := d.sh(t, id, "cd "+dir+" && ls -A --zero | LC_ALL=C sort -z | sha256sum"); !strings.HasPrefix(got, sortedSum(names)) {
		t.Error("the guest has other names")
	}
	for _, name := range names {
		from, to := path.Join(dir, name), "/root/moved"
		if err := d.RenameFile(t.Context(), id, from, to); err != nil {
			t.Errorf("rename %q: %v", name, err)
		}
		if err := d.RenameFile(t.Context(), id, to, from); err != nil {
			t.Errorf("rename back %q: %v", name, err)
		}
		if err := d.RemoveFile(t.Context(), id, from, false); err != nil {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	if got := d.sh(t, id, "ls -A "+dir+"; cd /root; ls x moved 2>/dev/null || true"); got != "" {
		t.Errorf("left over: %q", got)
	}
	err = d.WriteFile(t.Context(), id, path.Join(dir, strings.Repeat("l", 256)), strings.NewReader("x"), client.WriteOptions{})
	wantCode(t, err, "invalid_argument", "long")
	for _, p := range []string{"relative", "", "/root/a\x00b"} {
		wantCode(t, d.RemoveFile(t.Context(), id, p, true), "invalid_argument", "path")
	}
	_, err = d.ReadFile(t.Context(), id, "/root/none")
	wantCode(t, err, "not_found", "/root/none")
	_, err = d.ReadFile(t.Context(), id, "/root")
	wantCode(t, err, "invalid_argument", "/root")
	wantCode(t, d.RemoveFile(t.Context(), id, "/root", false), "in_use", "/root")
	wantCode(t, d.MakeDir(t.Context(), id, dir, client.MakeDirOptions{}), "already_exists", dir)
}

// sortedSum is what "LC_ALL=C sort -z | sha256sum" prints for names.
func sortedSum(names []string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(slices.Values(names)) {
		io.WriteString(h, name+"\x00")
	}
	return sum(h)
}
