package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/erofs/go-erofs"

	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image/debian"
	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
	"github.com/forkd-dev/forkd/internal/image/kernel"
	"github.com/forkd-dev/forkd/internal/image/kernel/kerneltest"
)

// packages is a whole distribution: a program, one it depends on, an extra one,
// an essential one and a kernel.
func packages() []debiantest.Package {
	file := func(name, body string) debiantest.Entry { return debiantest.File("./"+name, body, 0o755) }
	return []debiantest.Package{
		{Name: "hello", Fields: map[string]string{"Depends": "libhello (>= 1)"}, Codec: ".xz", Data: []debiantest.Entry{
			file("usr/bin/hello", "#!/bin/sh\n"), file("usr/share/doc/hello/README", "dropped"),
		}},
		{Name: "libhello", Codec: ".zst", Data: []debiantest.Entry{file("usr/lib/libhello.so", strings.Repeat("l", 10000))}},
		{Name: "extra", Codec: ".gz", Data: []debiantest.Entry{file("usr/bin/extra", "extra")}},
		{Name: "base", Fields: map[string]string{"Essential": "yes"}, Data: []debiantest.Entry{
			debiantest.File("./usr/share/base-passwd/passwd.master", "root:*:0:0::/root:/bin/sh\n", 0o644),
		}},
		{Name: "linux-image-riscv64", Fields: map[string]string{"Depends": "linux-image-6.1-test (= 1.0)"}},
		{Name: "linux-image-6.1-test", Fields: map[string]string{"Depends": "initramfs-tools"}, Codec: ".xz", Data: []debiantest.Entry{
			file("boot/vmlinux-6.1-test", string(kerneltest.Image(8192))),
			file("usr/lib/modules/6.1-test/modules.builtin", "kernel/a/virtio.ko\n"),
			file("usr/lib/modules/6.1-test/kernel/erofs.ko", string(kerneltest.Module(5, "depends=virtio,crc"))),
			file("usr/lib/modules/6.1-test/kernel/crc.ko", string(kerneltest.Module(5, "depends="))),
		}},
	}
}

type world struct {
	archive *debiantest.Archive
	home    string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{debiantest.New(t, debiantest.Options{}, packages()...), t.TempDir()}
}

// builder returns what Build would use, with the test's archive for Debian's.
func (w *world) builder(o Options) *builder {
	o.Home, o.Arch = w.home, "riscv64"
	if o.Agent == nil {
		o.Agent = []byte("agent 1")
	}
	return &builder{
		Options: o,
		client:  debian.Client{Dir: cacheDir(w.home), Keys: w.archive.Keys},
		mirror:  func() (string, error) { return w.archive.URL, nil },
		base:    []string{"hello"},
		kernel:  architectures["riscv64"].kernel,
		modules: []kernel.Want{{Name: "virtio"}, {Name: "erofs"}},
		now:     time.Now,
	}
}

func (w *world) build(t testing.TB, o Options) *Image {
	t.Helper()
	img, err := w.builder(o).build(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// noise lists what should not be under home.
func (w *world) noise(t testing.TB) []string {
	t.Helper()
	var found []string
	filepath.WalkDir(w.home, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		if err == nil && (strings.HasPrefix(name, ".") && name != lockName || strings.HasSuffix(name, ".part")) {
			found = append(found, path)
		}
		return err
	})
	return found
}

func TestBuild(t *testing.T) {
	w := newWorld(t)
	var steps []string
	img := w.build(t, Options{Progress: func(p Progress) {
		if !slices.Contains(steps, p.Step) {
			steps = append(steps, p.Step)
		}
	}})
	if want := []string{"index", "download", "unpack", "write"}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	var names []string
	for _, p := range img.Packages {
		names = append(names, p.Name)
	}
	if want := "libhello hello base linux-image-6.1-test"; strings.Join(names, " ") != want {
		t.Errorf("packages %v, want %s", names, want)
	}
	if img.Kernel != "6.1-test" || img.Suite != "trixie" || img.Release != "13.0" || img.Arch != "riscv64" || img.Size() == 0 {
		t.Errorf("manifest %+v", img.Manifest)
	}
	if err := img.Verify(context.Background()); err != nil {
		t.Error(err)
	}
	file, err := os.ReadFile(img.KernelPath())
	if err != nil || !bytes.Equal(file, kerneltest.Image(8192)) {
		t.Errorf("kernel of %d bytes, %v", len(file), err)
	}
	checkRootfs(t, img)
	checkInitramfs(t, img, "agent 1")
	if noise := w.noise(t); noise != nil {
		t.Errorf("left %v", noise)
	}
}

func checkRootfs(t *testing.T, img *Image) {
	t.Helper()
	f, err := os.Open(img.RootfsPath())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"usr/bin/hello": "#!/bin/sh\n", "usr/lib/libhello.so": strings.Repeat("l", 10000),
		"etc/passwd": "root:*:0:0::/root:/bin/sh\nuser:*:1000:1000::/home/user:/bin/bash\n", "etc/hostname": "forkd\n",
	} {
		if got, err := fs.ReadFile(root, name); err != nil || string(got) != want {
			t.Errorf("%s is %.40q, %v", name, got, err)
		}
	}
	for _, name := range []string{"usr/share/doc/hello/README", "boot/vmlinux-6.1-test"} {
		if _, err := fs.Stat(root, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func checkInitramfs(t *testing.T, img *Image, agent string) {
	t.Helper()
	got, err := os.ReadFile(img.InitramfsPath())
	if err != nil {
		t.Fatal(err)
	}
	var init bytes.Buffer
	if err := boot.WriteInit(&init, []byte(agent)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[img.ModulesLen:], init.Bytes()) || !bytes.Contains(got[:img.ModulesLen], []byte("crc.ko\nerofs.ko\n")) {
		t.Errorf("the initramfs is not modules, then agent %q", agent)
	}
}

func TestBuildReuses(t *testing.T) {
	w := newWorld(t)
	first := w.build(t, Options{})
	asked := w.archive.Requests("dists/trixie/InRelease")
	if again := w.build(t, Options{}); again.Key != first.Key || w.archive.Requests("dists/trixie/InRelease") != asked {
		t.Error("the same options asked the mirror again")
	}
	if fresh := w.build(t, Options{Refresh: true}); fresh.Key != first.Key || w.archive.Requests("dists/trixie/InRelease") != asked+1 {
		t.Error("a refresh with nothing new made another image, or did not ask")
	}

	// Another agent: the same file system, shared, and its own initramfs.
	other := w.build(t, Options{Agent: []byte("agent 2")})
	if other.Key == first.Key || other.Base != first.Base {
		t.Errorf("keys %s and %s, bases %s and %s", first.Key, other.Key, first.Base, other.Base)
	}
	checkInitramfs(t, other, "agent 2")
	checkInitramfs(t, first, "agent 1")
	a, _ := os.Stat(first.RootfsPath())
	b, _ := os.Stat(other.RootfsPath())
	if !os.SameFile(a, b) {
		t.Error("two images that differ in the agent have two file systems")
	}

	extra := w.build(t, Options{Packages: []string{"extra"}})
	if extra.Base == first.Base || len(extra.Packages) != len(first.Packages)+1 {
		t.Errorf("with one more package: %v", extra.Packages)
	}
	if twice := w.build(t, Options{Packages: []string{"hello", "extra", "extra"}}); twice.Key != extra.Key || twice.Request != extra.Request {
		t.Error("naming a package twice, or one that is there anyway, gives another image")
	}

	// New packages on the mirror: only a refresh sees them.
	list := packages()
	list[1].Version = "2.0"
	w.archive.Publish(t, debiantest.Options{}, list...)
	if same := w.build(t, Options{}); same.Key != first.Key {
		t.Error("a build without refresh changed with the mirror")
	}
	newer := w.build(t, Options{Refresh: true})
	if newer.Key == first.Key || !slices.ContainsFunc(newer.Packages, func(p Package) bool { return p.Version == "2.0" }) {
		t.Errorf("refreshed image has %v", newer.Packages)
	}
	if now := w.build(t, Options{}); now.Key != newer.Key {
		t.Error("the newest image for the options is not the one that is used")
	}

	images, err := List(w.home)
	if err != nil || len(images) != 4 {
		t.Fatalf("%d images, %v", len(images), err)
	}
	if err := Remove(context.Background(), w.home, first.Key); err != nil {
		t.Fatal(err)
	}
	if err := other.Verify(context.Background()); err != nil {
		t.Errorf("removing an image broke one that shares files with it: %v", err)
	}
	if _, err := Open(w.home, first.Key); !errors.Is(err, ErrNotExist) {
		t.Errorf("opening a removed image: %v", err)
	}
	if err := Remove(context.Background(), w.home, first.Key); !errors.Is(err, ErrNotExist) {
		t.Errorf("removing it again: %v", err)
	}
	if noise := w.noise(t); noise != nil {
		t.Errorf("left %v", noise)
	}
}

func TestSameInputsSameBytes(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	b.archive = a.archive
	first, second := a.build(t, Options{}), b.build(t, Options{})
	if first.Key != second.Key {
		t.Errorf("keys %s and %s", first.Key, second.Key)
	}
	for name := range first.Files {
		if first.Files[name].SHA256 != second.Files[name].SHA256 {
			t.Errorf("%s differs between two builds", name)
		}
	}
}

// TestCancelAnywhere ends a build at every progress report in turn. Nothing
// half-made may be left, and a later build must work.
func TestCancelAnywhere(t *testing.T) {
	w := newWorld(t)
	for n := 0; ; n++ {
		ctx, cancel := context.WithCancel(context.Background())
		reports := 0
		_, err := w.builder(Options{Progress: func(Progress) {
			if reports == n {
				cancel()
			}
			reports++
		}}).build(ctx)
		cancel()
		if noise := w.noise(t); noise != nil {
			t.Fatalf("after report %d: left %v", n, noise)
		}
		if reports <= n {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("after report %d: %v", n, err)
		}
		if images, err := List(w.home); len(images) > 0 || err != nil {
			t.Fatalf("after report %d: %d images, %v", n, len(images), err)
		}
	}
	if images, err := List(w.home); err != nil || len(images) != 1 {
		t.Errorf("%d images, %v", len(images), err)
	}
}

func TestBuildSweeps(t *testing.T) {
	w := newWorld(t)
	for _, dir := range []string{buildPrefix + "1", trashPrefix + "2"} {
		if err := os.MkdirAll(filepath.Join(imagesDir(w.home), dir, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.build(t, Options{})
	if noise := w.noise(t); noise != nil {
		t.Errorf("left %v", noise)
	}
}

func TestConcurrentBuilds(t *testing.T) {
	w := newWorld(t)
	keys := make([]string, 4)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			img, err := w.builder(Options{}).build(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = img.Key
		})
	}
	wg.Wait()
	if keys = slices.Compact(keys); len(keys) != 1 {
		t.Errorf("keys %v", keys)
	}
	if n := w.archive.Requests("pool/hello.deb"); n != 1 {
		t.Errorf("four builds at once fetched a package %d times", n)
	}
}

func TestLockWaits(t *testing.T) {
	home := t.TempDir()
	unlock, err := lock(context.Background(), home, func() { t.Error("busy though free") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := lock(ctx, home, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a lock in use: %v", err)
	}
	unlock()
	unlock, err = lock(context.Background(), home, func() {})
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestBuildRefuses(t *testing.T) {
	w := newWorld(t)
	many := make([]string, maxPackages+1)
	for name, change := range map[string]func(*builder){
		"no home":           func(b *builder) { b.Home = "" },
		"no agent":          func(b *builder) { b.Agent = nil },
		"path as a package": func(b *builder) { b.Packages = []string{"../x"} },
		"option":            func(b *builder) { b.Packages = []string{"-x"} },
		"too many":          func(b *builder) { b.Packages = many },
		"unknown package":   func(b *builder) { b.Packages = []string{"nothing-like-it"} },
		"no mirror":         func(b *builder) { b.mirror = func() (string, error) { return "", debian.ErrNoMirror } },
		"missing module":    func(b *builder) { b.modules = []kernel.Want{{Name: "nowhere"}} },
	} {
		b := w.builder(Options{})
		change(b)
		if _, err := b.build(context.Background()); err == nil {
			t.Errorf("%s: built", name)
		}
	}
	if images, _ := os.ReadDir(imagesDir(w.home)); len(images) > 1 || w.noise(t) != nil {
		t.Errorf("left %v %v", images, w.noise(t))
	}
}
