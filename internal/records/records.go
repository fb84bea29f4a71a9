// Package records keeps small things durable: a directory of records of one kind, a JSON file each.
//
// A record is replaced in one step and is durable before the step counts, so that whoever reads the directory after
// a crash finds each as it was before or after. All are read when the directory is opened, and told from memory then.
//
// Lock order: Dir.mu is a leaf. It is not held while something is written: whoever changes a record takes care that
// nobody else changes the same one.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

const (
	suffix  = ".json"
	maxSize = 1 << 20 // bytes
)

// Record is what is durable of one thing.
type Record interface {
	// Key names it, and its file.
	Key() string
	// Check refuses what no forkd of this version writes, among it a key that is no name of a file.
	Check() error
}

// Dir is a directory of records.
type Dir[R Record] struct {
	path string

	mu    sync.Mutex
	known map[string]R // by key; guarded by mu
}

// Open reads the records in a directory, which is made if it is not there. What a crash has left half-written is
// removed; a record that cannot be read is an error, because what it names would be taken for garbage.
func Open[R Record](path string) (*Dir[R], error) {
	d := &Dir[R]{path: path, known: make(map[string]R)}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(path, e.Name())
		key, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		r, err := read[R](path)
		if err == nil && r.Key() != key {
			err = fmt.Errorf("it is of %q", r.Key())
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		d.known[key] = r
	}
	return d, nil
}

func read[R Record](path string) (r R, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return r, err
	}
	if st.Size() > maxSize {
		return r, fmt.Errorf("%d bytes are too many for a record", st.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return Parse[R](b)
}

// Parse reads a record.
func Parse[R Record](b []byte) (r R, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	return r, r.Check()
}

func (d *Dir[R]) file(key string) string { return filepath.Join(d.path, key+suffix) }

// Get returns the record of a key, if there is one.
func (d *Dir[R]) Get(key string) (R, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.known[key]
	return r, ok
}

// Find returns any record that matches.
func (d *Dir[R]) Find(match func(R) bool) (r R, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.known {
		if match(r) {
			return r, true
		}
	}
	return r, false
}

// All returns the records in order of their keys.
func (d *Dir[R]) All() []R {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]R, 0, len(d.known))
	for _, r := range d.known {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b R) int { return strings.Compare(a.Key(), b.Key()) })
	return list
}

// Put makes a record durable.
func (d *Dir[R]) Put(r R) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("BUG: a record that could not be read again: %w", err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if b = append(b, '\n'); len(b) > maxSize {
		return fmt.Errorf("%d bytes are too many for a record", len(b))
	}
	if err := WriteDurably(d.file(r.Key()), b); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[r.Key()] = r
	return nil
}

// Remove forgets a record, durably.
func (d *Dir[R]) Remove(key string) error {
	if err := os.Remove(d.file(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mu.Lock()
	delete(d.known, key)
	d.mu.Unlock()
	return syncDir(d.path)
}

// WriteDurably replaces a file in one step.
func WriteDurably(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
