package hosttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image/debian"
	"github.com/forkd-dev/forkd/internal/image/kernel"
	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

// The kernel of the emulated host.
const (
	suite         = "trixie"
	arch          = "amd64"
	kernelPackage = "linux-image-cloud-amd64" // depends on the current kernel's package
)

// modules are what the host loads. KVM comes last: see loadModules.
var modules = []kernel.Want{
	{Name: "vhost_vsock", Optional: true}, {Name: "loop", Optional: true}, {Name: "erofs", Optional: true},
	{Name: "irqbypass", Optional: true}, {Name: "ccp", Optional: true}, {Name: "kvm"}, {Name: "kvm_amd"},
}

// host is a kernel with its modules, as files in a cache.
type host struct{ kernel, modules string }

// fetch returns the emulated host's kernel, from the cache or from a Debian mirror.
func fetch(ctx context.Context, cache string) (*host, error) {
	keys, err := debian.ArchiveKeys()
	if err != nil {
		return nil, err
	}
	mirror, err := debian.FindMirror("", os.Getenv, os.DirFS("/etc/apt"))
	if err != nil {
		return nil, err
	}
	c := debian.Client{Mirror: mirror, Dir: filepath.Join(cache, "debian"), Keys: keys}
	index, err := c.Index(ctx, suite, arch)
	if err != nil {
		return nil, err
	}
	p, err := index.Kernel(kernelPackage)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(fmt.Append(nil, p.SHA256, modules))
	dir := filepath.Join(cache, "hosttest-"+hex.EncodeToString(sum[:8]))
	h := &host{filepath.Join(dir, "vmlinux"), filepath.Join(dir, "modules.cpio")}
	if _, err := os.Stat(dir); err == nil {
		return h, nil
	}
	return h, unpack(ctx, &c, p, dir)
}

// unpack makes dir in one step.
func unpack(ctx context.Context, c *debian.Client, p *debian.Package, dir string) error {
	deb, err := c.Open(ctx, p)
	if err != nil {
		return err
	}
	defer deb.Close()
	work, err := os.MkdirTemp(filepath.Dir(dir), "hosttest-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	spool, err := rootfs.NewSpool(work)
	if err != nil {
		return err
	}
	defer spool.Close()
	k, err := kernel.Extract(ctx, deb, spool, modules)
	if err != nil {
		return fmt.Errorf("unpacking %s: %w", p, err)
	}
	result := filepath.Join(work, "host")
	if err := os.Mkdir(result, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(result, "vmlinux"), k.Image, 0o644); err != nil {
		return err
	}
	if err := create(filepath.Join(result, "modules.cpio"), func(w io.Writer) error { return boot.WriteModules(w, k.Modules) }); err != nil {
		return err
	}
	if err := os.Rename(result, dir); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

func create(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
