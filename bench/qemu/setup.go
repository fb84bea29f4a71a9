package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image"
	"github.com/forkd-dev/forkd/internal/image/ext4"
)

// guestPackage is the guest's init program; it is compiled when it is needed.
const guestPackage = "github.com/forkd-dev/forkd/bench/qemu/guest"

const scratchSize = 1 << 30 // bytes; the file is sparse

// prepare compiles the init program, finds or builds an image, and writes an
// initramfs of both into dir. It returns a spec that lacks its scratch disk.
func prepare(ctx context.Context, o *options, dir string) (spec, *image.Image, error) {
	init, err := compile(ctx, dir)
	if err != nil {
		return spec{}, nil, err
	}
	img, err := findImage(ctx, o.home, init)
	if err != nil {
		return spec{}, nil, err
	}
	s := spec{
		kernel:      img.KernelPath(),
		initrd:      filepath.Join(dir, "initramfs.cpio"),
		root:        img.RootfsPath(),
		commandLine: commandLine(o.names),
		memoryMiB:   o.memoryMiB,
	}
	if o.verbose {
		s.verbose = os.Stderr
	}
	return s, img, writeInitramfs(s.initrd, img, init)
}

// commandLine is the kernel's. A kernel that panics restarts at once, which
// ends the machine. Sv39 is all that forkd's board has, so QEMU gets no deeper
// page tables either; and pages are not cleared twice.
func commandLine(names []string) string {
	return "console=hvc0 panic=-1 no4lvl init_on_alloc=0 " + suite.Parameter + strings.Join(names, ",")
}

// compile builds the init program and returns it.
func compile(ctx context.Context, dir string) ([]byte, error) {
	path := filepath.Join(dir, "init")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, guestPackage)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=riscv64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the guest's init program: %w: %s", err, out)
	}
	return os.ReadFile(path)
}

// findImage returns the newest image there is, or builds the default one with
// init in place of the agent.
func findImage(ctx context.Context, home string, init []byte) (*image.Image, error) {
	images, err := image.List(home)
	if len(images) > 0 {
		return images[0], nil // another one that is broken does not matter
	}
	if err != nil {
		return nil, err
	}
	step := ""
	return image.Build(ctx, image.Options{Home: home, Agent: init, Progress: func(p image.Progress) {
		if p.Step != step {
			step = p.Step
			fmt.Fprintf(os.Stderr, "building an image in %s: %s\n", home, step)
		}
	}})
}

// writeInitramfs writes the modules of an image followed by the init program.
func writeInitramfs(path string, img *image.Image, init []byte) (err error) {
	modules, err := os.Open(img.InitramfsPath())
	if err != nil {
		return err
	}
	defer modules.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.CopyN(f, modules, img.ModulesLen); err != nil {
		return fmt.Errorf("copying the modules of %s: %w", img.InitramfsPath(), err)
	}
	return boot.WriteInit(f, init)
}

// newScratch makes a scratch disk at path. All are the same, byte by byte.
func newScratch(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(scratchSize); err != nil {
		return err
	}
	_, err = ext4.Format(f, ext4.Options{Size: scratchSize, UUID: [16]byte{'b', 'e', 'n', 'c', 'h'}, Time: time.Unix(1704067200, 0)})
	return err
}
