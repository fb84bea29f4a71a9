package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkd-dev/forkd/internal/boot"
)

// writeInitrd packs the kernel's modules, this program, and what it needs.
func writeInitrd(path string, h *host, files Files) error {
	modules, err := os.ReadFile(h.modules)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	told, err := json.Marshal(errand{Args: arguments(), Env: environment(), Dir: dir, Programs: files.Programs})
	if err != nil {
		return err
	}
	extra := []boot.File{
		{Path: strings.TrimPrefix(errandPath, "/"), Mode: 0o644, Data: told},
		{Path: filepath.Join(strings.TrimPrefix(dir, "/"), ".here"), Mode: 0o644}, // makes the directory
	}
	if files.Guest != nil {
		kernel, err := os.ReadFile(h.kernel)
		if err != nil {
			return err
		}
		extra = append(extra, boot.File{Path: strings.TrimPrefix(guestKernel, "/"), Mode: 0o644, Data: kernel})
	}
	for _, p := range files.Paths {
		if extra, err = addTree(extra, p); err != nil {
			return err
		}
	}
	return create(path, func(w io.Writer) error {
		if _, err := w.Write(modules); err != nil {
			return err
		}
		if err := boot.WriteInit(w, program); err != nil {
			return err
		}
		return boot.WriteFiles(w, extra)
	})
}

// guestKernel is where the emulated host keeps a kernel for guests, its own.
const guestKernel = "/guest/vmlinux"

// Kernel returns a kernel for guests of the tests, which is the emulated host's, and
// an initramfs with this program in it; see Files.Guest.
func Kernel(ctx context.Context) (kernel, initrd []byte, err error) {
	path := guestKernel
	if _, err := os.Stat(path); err != nil {
		cache, err := cacheDir()
		if err != nil {
			return nil, nil, err
		}
		h, err := fetch(ctx, cache)
		if err != nil {
			return nil, nil, err
		}
		path = h.kernel
	}
	if kernel, err = os.ReadFile(path); err != nil {
		return nil, nil, err
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	err = boot.WriteInit(&b, program)
	return kernel, b.Bytes(), err
}

// addTree adds a file, or a directory with all that is in it.
func addTree(list []boot.File, root string) ([]boot.File, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(path) // a link's target
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		list = append(list, boot.File{Path: strings.TrimPrefix(path, "/"), Mode: uint32(info.Mode().Perm()), Data: data})
		return err
	})
	return list, err
}
