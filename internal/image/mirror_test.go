package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/image/debian"
)

// TestDebianMirror plans the default image from a real mirror, which checks the
// embedded keys, the default package set and the resolver against what Debian
// has today, and fetches and unpacks one small package.
func TestDebianMirror(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the network, and -short is given")
	}
	mirror, err := debian.FindMirror("", os.Getenv, os.DirFS("/etc/apt"))
	if err != nil {
		t.Skipf("no Debian mirror is known here: %v", err)
	}
	keys, err := debian.ArchiveKeys()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	b := &builder{
		Options: Options{Home: home, Arch: "riscv64", Agent: []byte("agent")},
		client:  debian.Client{Dir: cacheDir(home), Keys: keys},
		mirror:  func() (string, error) { return mirror, nil },
		base:    basePackages, kernel: architectures["riscv64"].kernel, modules: guestModules, now: time.Now,
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	p, err := b.plan(ctx)
	if errors.Is(err, debian.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Skipf("the mirror cannot be reached: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(p.packages, func(d *debian.Package) bool { return d.Name == name })
	}
	for _, name := range append([]string{"libc6", "perl-base", "libgfortran5", "python3-minimal"}, basePackages...) {
		if !has(name) {
			t.Errorf("the default image lacks %s", name)
		}
	}
	if len(p.packages) < 80 || len(p.packages) > 200 || has("linux-base") || has("initramfs-tools") {
		t.Errorf("the default image has %d packages", len(p.packages))
	}
	small := slices.IndexFunc(p.packages, func(d *debian.Package) bool { return d.Name == "hostname" })
	if small < 0 {
		t.FailNow()
	}
	f, err := b.client.Open(ctx, p.packages[small])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := debian.Walk(ctx, f, func(*tar.Header, io.Reader) error { return nil }); err != nil {
		t.Error(err)
	}
}
