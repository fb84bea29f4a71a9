package servertest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

func (f *Fake) path(id, path string) (string, error) {
	b, err := f.box(id)
	if err != nil {
		return "", err
	}
	return filepath.Join(b.root, filepath.Clean("/"+path)), nil
}

func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &sandbox.Error{Code: sandbox.NotFound, Message: "no such file", Err: err}
	case errors.Is(err, fs.ErrExist):
		return &sandbox.Error{Code: sandbox.AlreadyExists, Message: "the file exists", Err: err}
	}
	return &sandbox.Error{Code: sandbox.InvalidArgument, Message: "file operation", Err: err}
}

// ReadFile copies a file. One named "broken" fails after its first bytes.
func (f *Fake) ReadFile(_ context.Context, id, path string, offset, length int64, w io.Writer) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return fileError(err)
	}
	defer file.Close()
	if length < 0 {
		length = 1 << 60
	}
	if _, err := io.Copy(w, io.NewSectionReader(file, offset, length)); err != nil {
		return fileError(err)
	}
	if filepath.Base(path) == "broken" {
		return fault(sandbox.SandboxDead, "", "the guest died")
	}
	return nil
}

// WriteFile writes beside and renames.
func (f *Fake) WriteFile(_ context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	if opts.Parents {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return fileError(err)
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), "new")
	if err != nil {
		return fileError(err)
	}
	defer os.Remove(tmp.Name())
	mode := fs.FileMode(0o644)
	if opts.Mode != nil {
		mode = *opts.Mode
	}
	_, err = io.Copy(tmp, r)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	return fileError(err)
}

// ListFiles lists by name.
func (f *Fake) ListFiles(ctx context.Context, id, path string) ([]sandbox.FileInfo, error) {
	name, err := f.path(id, path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fileError(err)
	}
	var infos []sandbox.FileInfo
	for _, entry := range entries {
		info, err := f.StatFile(ctx, id, filepath.Join(path, entry.Name()))
		if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.NotFound {
			continue // it is gone by now
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, *info)
	}
	return infos, nil
}

// StatFile describes a file.
func (f *Fake) StatFile(_ context.Context, id, path string) (*sandbox.FileInfo, error) {
	name, err := f.path(id, path)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return nil, fileError(err)
	}
	out := &sandbox.FileInfo{
		Name: info.Name(), Path: filepath.Clean(path), Size: info.Size(), Mode: info.Mode(), ModTime: info.ModTime(),
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		out.Target, err = os.Readlink(name)
	}
	return out, fileError(err)
}

// MakeDir makes a directory.
func (f *Fake) MakeDir(ctx context.Context, id, path string, opts sandbox.MakeDirOptions) (*sandbox.FileInfo, bool, error) {
	name, err := f.path(id, path)
	if err != nil {
		return nil, false, err
	}
	_, before := os.Stat(name)
	make := os.Mkdir
	if opts.Parents {
		make = os.MkdirAll
	}
	mode := fs.FileMode(0o755)
	if opts.Mode != nil {
		mode = *opts.Mode
	}
	if err := make(name, mode); err != nil {
		return nil, false, fileError(err)
	}
	if before != nil {
		if err := os.Chmod(name, mode); err != nil { // whatever the umask is
			return nil, false, fileError(err)
		}
	}
	info, err := f.StatFile(ctx, id, path)
	return info, before != nil, err
}

// RenameFile moves.
func (f *Fake) RenameFile(_ context.Context, id, from, to string) error {
	src, err := f.path(id, from)
	if err != nil {
		return err
	}
	dst, err := f.path(id, to)
	if err != nil {
		return err
	}
	return fileError(os.Rename(src, dst))
}

// RemoveFile removes.
func (f *Fake) RemoveFile(_ context.Context, id, path string, recursive bool) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(name); err != nil || !recursive {
		return fileError(errors.Join(err, os.Remove(name)))
	}
	return fileError(os.RemoveAll(name))
}
