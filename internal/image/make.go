package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image/debian"
	"github.com/forkd-dev/forkd/internal/image/kernel"
	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

// make builds the planned image. The lock must be held.
func (b *builder) make(ctx context.Context, p *plan) (img *Image, err error) {
	dir, err := os.MkdirTemp(imagesDir(b.Home), buildPrefix)
	if err != nil {
		return nil, fmt.Errorf("building an image: %w", err)
	}
	defer os.RemoveAll(dir) // of no effect once the directory has its final name
	m := &Manifest{
		Format: formatVersion, Key: p.key, Base: p.base, Request: b.request(),
		Arch: b.Arch, Suite: suite, Release: p.index.Version, IndexDate: p.index.Date,
		Packages: packageList(p), AgentSum: sumOf(b.Agent), Files: map[string]Record{},
		Created: b.now().UTC(),
	}
	if donor := b.donor(p.base); donor != nil {
		err = b.fromDonor(dir, m, donor)
	} else {
		err = b.fromPackages(ctx, dir, m, p)
	}
	if err == nil {
		err = seal(ctx, dir, m)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("building an image: %w", err)
	}
	if err := os.Rename(dir, filepath.Join(imagesDir(b.Home), p.key)); err != nil {
		return nil, fmt.Errorf("putting the image in place: %w", err)
	}
	if err := syncDir(imagesDir(b.Home)); err != nil {
		return nil, fmt.Errorf("putting the image in place: %w", err)
	}
	return Open(b.Home, p.key)
}

// donor returns an image that differs from the planned one in its agent only,
// or nil.
func (b *builder) donor(base string) *Image {
	images, _ := List(b.Home) // a broken image is no donor
	for _, img := range images {
		if img.Base == base {
			return img
		}
	}
	return nil
}

// fromDonor shares the donor's kernel and root file system and copies the
// modules' part of its initramfs.
func (b *builder) fromDonor(dir string, m *Manifest, donor *Image) error {
	m.Kernel = donor.Kernel
	for _, name := range []string{kernelName, rootfsName} {
		if err := os.Link(filepath.Join(donor.Dir, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("sharing %s with another image: %w", name, err)
		}
		m.Files[name] = donor.Files[name]
	}
	return b.writeInitramfs(dir, m, func(w io.Writer) error {
		f, err := os.Open(donor.InitramfsPath())
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(w, f, donor.ModulesLen)
		return err
	})
}

// fromPackages makes everything anew.
func (b *builder) fromPackages(ctx context.Context, dir string, m *Manifest, p *plan) error {
	if err := b.client.Fetch(ctx, append(slices.Clone(p.packages), p.kernel)); err != nil {
		return err
	}
	spool, err := rootfs.NewSpool(dir)
	if err != nil {
		return err
	}
	defer spool.Close()
	k, contents, err := b.unpack(ctx, p, spool)
	if err != nil {
		return err
	}
	m.Kernel = k.Release
	if err := os.WriteFile(filepath.Join(dir, kernelName), k.Image, 0o644); err != nil {
		return fmt.Errorf("writing the kernel: %w", err)
	}
	if err := b.writeInitramfs(dir, m, func(w io.Writer) error { return boot.WriteModules(w, k.Modules) }); err != nil {
		return err
	}
	return b.writeRootfs(ctx, dir, p, contents)
}

// unpack reads all packages, several at once, the kernel's first since it is by
// far the largest.
func (b *builder) unpack(ctx context.Context, p *plan, spool *rootfs.Spool) (*kernel.Kernel, []*debian.Contents, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var k *kernel.Kernel
	contents := make([]*debian.Contents, len(p.packages))
	one := func(n int) (err error) {
		if n == 0 {
			return b.withDeb(ctx, p.kernel, func(deb io.Reader) error {
				k, err = kernel.Extract(ctx, deb, spool, b.modules)
				return err
			})
		}
		return b.withDeb(ctx, p.packages[n-1], func(deb io.Reader) error {
			contents[n-1], err = debian.Unpack(ctx, deb, spool, debian.Keep)
			return err
		})
	}
	total := len(p.packages) + 1
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= total {
					return
				}
				if err := one(n); err != nil {
					cancel(err)
				}
				b.report(Progress{Step: "unpack", Done: done.Add(1), Total: int64(total)})
			}
		})
	}
	wg.Wait()
	return k, contents, context.Cause(ctx)
}

func (b *builder) withDeb(ctx context.Context, p *debian.Package, read func(io.Reader) error) error {
	f, err := b.client.Open(ctx, p)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := read(f); err != nil {
		return fmt.Errorf("unpacking %s: %w", p, err)
	}
	return nil
}

// writeRootfs merges the packages in their order, finishes the tree and writes
// the file system.
func (b *builder) writeRootfs(ctx context.Context, dir string, p *plan, contents []*debian.Contents) error {
	tree := rootfs.New()
	installed := make([]debian.Installed, len(contents))
	for i, c := range contents {
		if err := c.Merge(tree); err != nil {
			return fmt.Errorf("unpacking %s: %w", p.packages[i], err)
		}
		installed[i] = debian.Installed{Package: p.packages[i], Contents: c}
	}
	b.report(Progress{Step: "write"})
	if err := debian.Fixup(tree, installed, p.index.Date); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, rootfsName), func(f *os.File) error {
		return tree.WriteEROFS(ctx, f, p.index.Date)
	})
}

// writeInitramfs writes what modules writes, then the agent.
func (b *builder) writeInitramfs(dir string, m *Manifest, modules func(io.Writer) error) error {
	return writeFile(filepath.Join(dir, initramfsName), func(f *os.File) error {
		if err := modules(f); err != nil {
			return err
		}
		var err error
		if m.ModulesLen, err = f.Seek(0, io.SeekCurrent); err != nil {
			return err
		}
		return boot.WriteInit(f, b.Agent)
	})
}

func writeFile(path string, write func(*os.File) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing an image: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return nil
}

// seal records every file in the manifest and makes the directory durable.
func seal(ctx context.Context, dir string, m *Manifest) error {
	for _, name := range []string{kernelName, rootfsName, initramfsName} {
		if err := sealFile(ctx, filepath.Join(dir, name), name, m); err != nil {
			return fmt.Errorf("finishing the image: %w", err)
		}
	}
	text, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return fmt.Errorf("finishing the image: %w", err)
	}
	err = writeFile(filepath.Join(dir, manifestName), func(f *os.File) error {
		if _, err := f.Write(append(text, '\n')); err != nil {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("finishing the image: %w", err)
	}
	return nil
}

func sealFile(ctx context.Context, path, name string, m *Manifest) error {
	if _, ok := m.Files[name]; ok {
		return nil // shared with an image that is sealed
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sum, err := hashFile(ctx, path)
	if err != nil {
		return err
	}
	m.Files[name] = Record{Size: st.Size(), SHA256: sum, Time: st.ModTime().UTC()}
	return nil
}
