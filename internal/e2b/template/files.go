package template

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// maxUpload bounds an uploaded archive, in bytes.
const maxUpload = 4 << 30

// fileTime is how long an uploaded archive is kept without being used.
const fileTime = 7 * 24 * time.Hour

// files are the uploaded archives, one file each, named by the hash that the
// client has computed of their contents.
type files struct{ dir string }

func openFiles(dir string) (*files, error) {
	f := &files{dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return f, f.sweep(time.Now())
}

// sweep removes what was not used for long, and what a crash has left half-written.
func (f *files) sweep(now time.Time) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && (!ValidHash(e.Name()) || now.Sub(info.ModTime()) > fileTime) {
			err = os.Remove(filepath.Join(f.dir, e.Name()))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ValidHash reports whether s is a hash as clients compute them.
func ValidHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func (f *files) path(hash string) string { return filepath.Join(f.dir, hash) }

func (f *files) has(hash string) bool {
	if !ValidHash(hash) {
		return false
	}
	now := time.Now()
	return os.Chtimes(f.path(hash), now, now) == nil // it is wanted
}

func (f *files) put(hash string, r io.Reader) error {
	if !ValidHash(hash) {
		return invalid("", "malformed hash of files %q", clip(hash))
	}
	tmp, err := os.CreateTemp(f.dir, ".upload-")
	if err != nil {
		return fileError(err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	n, err := io.Copy(tmp, io.LimitReader(r, maxUpload+1))
	switch {
	case err != nil:
		return fileError(err)
	case n > maxUpload:
		return invalid("", "the archive is over the limit of %d bytes", int64(maxUpload))
	}
	if err := errors.Join(tmp.Close(), os.Rename(tmp.Name(), f.path(hash))); err != nil {
		return fileError(err)
	}
	return nil
}

func (f *files) open(hash string) (*os.File, error) {
	if !f.has(hash) {
		return nil, fmt.Errorf("the files with the hash %q were not uploaded", clip(hash))
	}
	return os.Open(f.path(hash))
}

// fileError says what is wrong with keeping a file.
func fileError(err error) error {
	e := &sandbox.Error{Code: sandbox.Internal, Message: "keeping uploaded files", Err: err}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Code, e.Hint = sandbox.NoSpace, "free some disk space"
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Code = sandbox.InvalidArgument
	case errors.Is(err, fs.ErrNotExist):
		e.Hint = "the directory of uploads is gone"
	}
	return e
}
