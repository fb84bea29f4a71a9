package kernel

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image/compress"
	"github.com/forkd-dev/forkd/internal/image/debian"
	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

const (
	maxModule  = 64 << 20 // bytes of one module, unpacked
	maxBuiltin = 4 << 20  // bytes of modules.builtin
)

// Kernel is what a guest boots from.
type Kernel struct {
	Release string        // for example "6.12.1-riscv64"
	Image   []byte        // raw; passes boot.ParseImage
	Modules []boot.Module // in load order
}

// Extract reads a kernel package. spool takes the package's modules, of which
// it cannot be known beforehand which are needed.
func Extract(ctx context.Context, deb io.Reader, spool *rootfs.Spool, wants []Want) (*Kernel, error) {
	x := &extraction{spool: spool, modules: map[string]stored{}, builtin: map[string]bool{}}
	if err := debian.Walk(ctx, deb, x.entry); err != nil {
		return nil, err
	}
	if x.kernel.Image == nil {
		return nil, fmt.Errorf("%w: the package has no boot/vmlinuz or boot/vmlinux", ErrKernel)
	}
	c := &closure{builtin: x.builtin, load: x.load}
	var err error
	x.kernel.Modules, err = c.collect(wants)
	if err != nil {
		return nil, err
	}
	return &x.kernel, nil
}

type extraction struct {
	spool   *rootfs.Spool
	kernel  Kernel
	modules map[string]stored // by canonical name
	builtin map[string]bool   // canonical names
}

// stored is a module as the package has it.
type stored struct {
	node  *rootfs.Node
	codec string // file name suffix after .ko, for example ".xz"
}

func (x *extraction) entry(header *tar.Header, content io.Reader) error {
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	name := strings.TrimPrefix(header.Name, "./")
	dir, base := path.Split(name)
	switch {
	case dir == "boot/" && (strings.HasPrefix(base, "vmlinuz-") || strings.HasPrefix(base, "vmlinux-")):
		return x.image(base[len("vmlinux-"):], header.Size, content)
	case base == "modules.builtin":
		return x.readBuiltin(content)
	case strings.Contains(name, "lib/modules/"):
		stem, codec, ok := strings.Cut(base, ".ko")
		if !ok || codec != "" && codec[0] != '.' {
			return nil
		}
		if header.Size > maxModule {
			return fmt.Errorf("%w: module of %d bytes", ErrKernel, header.Size)
		}
		node, err := x.spool.File(0, content, header.Size)
		x.modules[canonical(stem)] = stored{node, codec}
		return err
	}
	return nil
}

func (x *extraction) image(release string, size int64, content io.Reader) error {
	if x.kernel.Image != nil {
		return fmt.Errorf("%w: the package has two kernel images", ErrKernel)
	}
	if size > maxImage {
		return fmt.Errorf("%w: the kernel image has %d bytes", ErrKernel, size)
	}
	file := make([]byte, size)
	if _, err := io.ReadFull(content, file); err != nil {
		return err
	}
	x.kernel.Release = release
	var err error
	x.kernel.Image, err = decodeImage(file)
	return err
}

// readBuiltin reads paths of built-in modules, one a line.
func (x *extraction) readBuiltin(content io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(content, maxBuiltin))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		x.builtin[canonical(strings.TrimSuffix(path.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return nil
}

// load returns a module, unpacked, or nil when the package has none of that
// name.
func (x *extraction) load(name string) ([]byte, error) {
	m, ok := x.modules[name]
	if !ok {
		return nil, nil
	}
	data, err := compress.ReadAll(m.node.Open(), m.codec, maxModule)
	if err != nil {
		return nil, fmt.Errorf("unpacking module %q: %w", name, err)
	}
	return trim(dropSignature(data)), nil
}
