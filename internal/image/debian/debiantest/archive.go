// Package debiantest makes small signed Debian archives and serves them from
// the loopback interface, for tests that must not need a network. It is imported
// by tests only.
package debiantest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Package is one package of an archive. Its .deb is made from Data and Scripts.
type Package struct {
	Name    string
	Version string            // "1.0" when empty
	Fields  map[string]string // more control fields
	Codec   string            // suffix of data.tar: "", ".gz", ".xz" or ".zst"
	Data    []Entry
	Scripts map[string]string // control files by name
	Raw     []byte            // the .deb, instead of one made from the above
}

// Entry is one file in a package.
type Entry struct {
	tar.Header
	Body string
}

// File returns a regular file.
func File(name, body string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(body))}, body}
}

// Dir returns a directory.
func Dir(name string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, ""}
}

// Link returns a symbolic link.
func Link(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

// HardLink returns a hard link.
func HardLink(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

// Deb returns the package's file.
func (p Package) Deb(t testing.TB) []byte {
	t.Helper()
	if p.Raw != nil {
		return p.Raw
	}
	var control []Entry
	for name, body := range p.Scripts {
		control = append(control, File("./"+name, body, 0o755))
	}
	deb := []byte("!<arch>\n")
	deb = Member(deb, "debian-binary", []byte("2.0\n"))
	deb = Member(deb, "control.tar.gz", Compress(t, Tar(t, control), ".gz"))
	return Member(deb, "data.tar"+p.Codec, Compress(t, Tar(t, p.Data), p.Codec))
}

// Member appends a member to an ar archive.
func Member(ar []byte, name string, body []byte) []byte {
	ar = fmt.Appendf(ar, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, 0, 0, 0, "100644", len(body))
	ar = append(ar, body...)
	if len(body)%2 == 1 {
		ar = append(ar, '\n')
	}
	return ar
}

// Tar returns an archive of entries.
func Tar(t testing.TB, entries []Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, entry := range entries {
		if err := w.WriteHeader(&entry.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(entry.Body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Compress packs data in the way that a file name suffix stands for.
func Compress(t testing.TB, data []byte, codec string) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch codec {
	case ".gz":
		w = gzip.NewWriter(&buf)
	case ".xz":
		w, err = xz.NewWriter(&buf)
	case ".zst":
		w, err = zstd.NewWriter(&buf)
	default:
		return data
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Archive is a mirror with one suite, "trixie", for riscv64.
type Archive struct {
	URL  string
	Keys openpgp.EntityList // what signs the index

	mu       sync.Mutex        // guards the rest
	files    map[string][]byte // by path
	requests map[string]int    // answered, by path
}

// Options change how an archive is made.
type Options struct {
	Date       time.Time // of the index; an hour ago when zero
	ValidUntil time.Time // none when zero
	ByHash     bool
}

// New makes an archive of packages, signed with a key of its own, and serves it
// until the test ends.
func New(t testing.TB, o Options, packages ...Package) *Archive {
	t.Helper()
	key, err := openpgp.NewEntity("test", "", "test@example.invalid", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	a := &Archive{Keys: openpgp.EntityList{key}, files: map[string][]byte{}, requests: map[string]int{}}
	a.Publish(t, o, packages...)
	server := httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(server.Close)
	a.URL = server.URL + "/debian"
	return a
}

// Publish replaces what the archive has.
func (a *Archive) Publish(t testing.TB, o Options, packages ...Package) {
	t.Helper()
	if o.Date.IsZero() {
		o.Date = time.Now().Add(-time.Hour)
	}
	files := map[string][]byte{}
	var list bytes.Buffer
	for _, p := range packages {
		deb := p.Deb(t)
		path := "pool/" + p.Name + ".deb"
		files[path] = deb
		version := p.Version
		if version == "" {
			version = "1.0"
		}
		fmt.Fprintf(&list, "Package: %s\nVersion: %s\nArchitecture: riscv64\nFilename: %s\nSize: %d\nSHA256: %x\n",
			p.Name, version, path, len(deb), sha256.Sum256(deb))
		for name, value := range p.Fields {
			fmt.Fprintf(&list, "%s: %s\n", name, value)
		}
		list.WriteByte('\n')
	}
	packed := Compress(t, list.Bytes(), ".xz")
	const dir = "main/binary-riscv64/"
	files["dists/trixie/"+dir+"Packages.xz"] = packed
	if o.ByHash {
		files[fmt.Sprintf("dists/trixie/%sby-hash/SHA256/%x", dir, sha256.Sum256(packed))] = packed
	}
	var release strings.Builder
	fmt.Fprintf(&release, "Origin: Debian\nCodename: trixie\nVersion: 13.0\nDate: %s\n", o.Date.UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"))
	if !o.ValidUntil.IsZero() {
		fmt.Fprintf(&release, "Valid-Until: %s\n", o.ValidUntil.UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"))
	}
	if o.ByHash {
		release.WriteString("Acquire-By-Hash: yes\n")
	}
	fmt.Fprintf(&release, "SHA256:\n %x %d %sPackages\n %x %d %sPackages.xz\n",
		sha256.Sum256(list.Bytes()), list.Len(), dir, sha256.Sum256(packed), len(packed), dir)
	files["dists/trixie/InRelease"] = Sign(t, a.Keys[0], release.String())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files = files
}

// Sign returns text with a clear signature around it.
func Sign(t testing.TB, key *openpgp.Entity, text string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := clearsign.Encode(&buf, key.PrivateKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(buf.Bytes(), '\n')
}

// Set replaces one file of the archive, or removes it when body is nil.
func (a *Archive) Set(path string, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if body == nil {
		delete(a.files, path)
		return
	}
	a.files[path] = body
}

// Get returns a file of the archive.
func (a *Archive) Get(path string) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.files[path]
}

// Requests returns how often a path was asked for.
func (a *Archive) Requests(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[path]
}

func (a *Archive) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/debian/")
	a.mu.Lock()
	body, ok := a.files[path]
	a.requests[path]++
	a.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Write(body)
}
