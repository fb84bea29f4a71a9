package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	lockName    = ".lock"
	buildPrefix = ".build-" // of directories in the making
	trashPrefix = ".trash-" // of directories on their way out
)

func imagesDir(home string) string { return filepath.Join(home, "images") }
func cacheDir(home string) string  { return filepath.Join(home, "cache", "debian") }

// List returns the images under home, newest first. Images that cannot be opened
// are left out and reported in the error, which does not make the others
// unusable.
func List(home string) ([]*Image, error) {
	entries, err := os.ReadDir(imagesDir(home))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	var images []*Image
	var broken []error
	for _, entry := range entries {
		if !keyPattern.MatchString(entry.Name()) {
			continue
		}
		img, err := Open(home, entry.Name())
		switch {
		case errors.Is(err, ErrNotExist): // removed since the directory was read
		case err != nil:
			broken = append(broken, err)
		default:
			images = append(images, img)
		}
	}
	slices.SortFunc(images, func(a, b *Image) int { return b.Created.Compare(a.Created) })
	return images, errors.Join(broken...)
}

// Remove deletes the image with the given key, whole or corrupt. Machines that
// have its files open are not disturbed.
func Remove(ctx context.Context, home, key string) error {
	dir := filepath.Join(imagesDir(home), key)
	if _, err := os.Lstat(dir); !keyPattern.MatchString(key) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing an image: %w: %.80q", ErrNotExist, key)
	}
	unlock, err := lock(ctx, home, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	return discard(dir)
}

// discard removes an image directory so that it is gone at once, not file by
// file. The lock must be held.
func discard(dir string) error {
	trash := filepath.Join(filepath.Dir(dir), trashPrefix+filepath.Base(dir))
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("removing an image: %w", err)
	}
	if err := os.Rename(dir, trash); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("removing an image: %w", err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("removing an image: %w", err)
	}
	return nil
}

// sweep removes what builds and removals that were killed have left. The lock
// must be held.
func sweep(home string) error {
	entries, err := os.ReadDir(imagesDir(home))
	if err != nil {
		return fmt.Errorf("sweeping images: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), buildPrefix) || strings.HasPrefix(entry.Name(), trashPrefix) {
			if err := os.RemoveAll(filepath.Join(imagesDir(home), entry.Name())); err != nil {
				return fmt.Errorf("sweeping images: %w", err)
			}
		}
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
