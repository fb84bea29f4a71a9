package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const partSuffix = ".part" // of files that are being downloaded

const updatingHint = "the mirror may be in the middle of an update: try again in some minutes, or use another mirror"

// object returns the path of the cache file with the given hash and size. It is
// checked on first use in a process, fetched from the first of paths that the
// mirror has when it is missing, and fetched again, with a notice, when it is
// damaged.
func (c *Client) object(ctx context.Context, sum string, size int64, what string, paths ...string) (string, error) {
	c.mu.Lock()
	name, ok := c.verified[sum]
	c.mu.Unlock()
	if ok {
		return name, nil
	}
	name = filepath.Join(c.Dir, sum)
	err := checkFile(ctx, name, sum, size)
	if errors.Is(err, ErrHash) {
		c.notice("the cache file of %s is damaged (%v); fetching it again", what, err)
	}
	if errors.Is(err, ErrHash) || errors.Is(err, fs.ErrNotExist) {
		err = c.fetchObject(ctx, name, sum, size, paths)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	c.mu.Lock()
	c.verified[sum] = name
	c.mu.Unlock()
	return name, nil
}

// checkFile compares a file with the hash and size it should have.
func checkFile(ctx context.Context, name, sum string, size int64) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return err
	} else if st.Size() != size {
		return fmt.Errorf("%w: %s has %d bytes, not %d", ErrHash, name, st.Size(), size)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, &ctxReader{ctx, f}); err != nil {
		return fmt.Errorf("hashing %s: %w", name, err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != sum {
		return fmt.Errorf("%w: %s", ErrHash, name)
	}
	return nil
}

// fetchObject downloads to a file aside, checks it and moves it in place, so
// that the cache never has half a file under its final name.
func (c *Client) fetchObject(ctx context.Context, name, sum string, size int64, paths []string) error {
	for i, path := range paths {
		err := retry(ctx, func() error {
			return c.place(name, func(w io.Writer) error { return c.downloadExact(ctx, path, w, sum, size) })
		})
		if err == nil || !errors.Is(err, ErrNotFound) || i == len(paths)-1 {
			return err
		}
	}
	return nil
}

// downloadExact downloads a file whose hash and size are known.
func (c *Client) downloadExact(ctx context.Context, path string, w io.Writer, sum string, size int64) error {
	hash := sha256.New()
	got := &lengthWriter{w: io.MultiWriter(w, hash)}
	if err := c.download(ctx, path, got, size); err != nil {
		return err
	}
	if got.n != size || hex.EncodeToString(hash.Sum(nil)) != sum {
		return withHint(fmt.Errorf("%w: %s has %d bytes with another hash than the signed index says (%d bytes)", ErrHash, path, got.n, size),
			updatingHint)
	}
	return nil
}

// place writes a file aside and renames it to name.
func (c *Client) place(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("making the cache: %w", err)
	}
	f, err := os.CreateTemp(c.Dir, "*"+partSuffix)
	if err != nil {
		return fmt.Errorf("writing to the cache: %w", err)
	}
	err = write(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return nil
}

// lengthWriter counts what goes through it.
type lengthWriter struct {
	w io.Writer
	n int64
}

func (l *lengthWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	l.n += int64(n)
	return n, err
}
