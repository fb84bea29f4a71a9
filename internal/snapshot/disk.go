package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/page"
)

// disk is all that the store does to its file system. Its reads are elsewhere:
// they cannot be half done.
type disk struct {
	// before, if not nil, is called before each step with its name and the paths
	// that it changes, the one that appears last. An error is returned instead of
	// taking the step.
	before func(step string, paths ...string) error
}

func (d disk) step(name string, paths ...string) error {
	if d.before == nil {
		return nil
	}
	return d.before(name, paths...)
}

// file is a new file that is being written. Writing ends with ctx.
type file struct {
	*os.File
	disk  disk
	ctx   context.Context
	wrote func(n int) // called from several goroutines; may be nil
}

// create makes a file; name is a pattern as for os.CreateTemp.
func (d disk) create(ctx context.Context, dir, name string) (*file, error) {
	if err := d.step("create", filepath.Join(dir, name)); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, name)
	if err != nil {
		return nil, err
	}
	return &file{File: f, disk: d, ctx: ctx}, nil
}

func (f *file) begin() error {
	if err := f.ctx.Err(); err != nil {
		return context.Cause(f.ctx)
	}
	return f.disk.step("write", f.Name())
}

func (f *file) end(n int, err error) (int, error) {
	if f.wrote != nil {
		f.wrote(n)
	}
	return n, err
}

func (f *file) Write(b []byte) (int, error) {
	if err := f.begin(); err != nil {
		return 0, err
	}
	return f.end(f.File.Write(b))
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if err := f.begin(); err != nil {
		return 0, err
	}
	return f.end(f.File.WriteAt(b, off))
}

func (f *file) Sync() error {
	if err := f.disk.step("sync", f.Name()); err != nil {
		return err
	}
	return f.File.Sync()
}

// discard closes and removes a file that is not wanted.
func (f *file) discard() error { return errors.Join(f.Close(), f.disk.remove(f.Name())) }

func (d disk) mkdirTemp(dir string) (string, error) {
	if err := d.step("mkdir", dir); err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, tempPrefix)
}

func (d disk) rename(from, to string) error {
	if err := d.step("rename", from, to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// exchange swaps two directories.
func (d disk) exchange(a, b string) error {
	if err := d.step("exchange", a, b); err != nil {
		return err
	}
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func (d disk) remove(path string) error {
	if err := d.step("remove", path); err != nil {
		return err
	}
	return os.Remove(path)
}

func (d disk) removeAll(path string) error {
	if err := d.step("remove", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// link gives a layer's file the name path.
func (d disk) link(l *page.Layer, path string) error {
	if err := d.step("link", path); err != nil {
		return err
	}
	return l.LinkTo(path)
}

// linkFile is link for a file that is known by its name.
func (d disk) linkFile(from, to string) error {
	if err := d.step("link", to); err != nil {
		return err
	}
	return os.Link(from, to)
}

func (d disk) syncDir(path string) error {
	if err := d.step("syncdir", path); err != nil {
		return err
	}
	return syncPath(path)
}

// syncFile makes durable what a file had before it was linked here.
func (d disk) syncFile(path string) error {
	if err := d.step("sync", path); err != nil {
		return err
	}
	return syncPath(path)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// writeFile makes a durable file with the contents b.
func (d disk) writeFile(ctx context.Context, path string, b []byte) error {
	f, err := d.create(ctx, filepath.Dir(path), tempPrefix)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
