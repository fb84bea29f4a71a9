package sandbox

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
	recordSuffix = ".json"
	maxRecord    = 1 << 20 // bytes
)

// record is what is durable of one thing.
type record interface {
	// key names it, and its file.
	key() string
	// check refuses what no forkd of this version writes.
	check() error
}

// records are the records of one kind, a JSON file each. A record is replaced in
// one step and is durable before the step counts.
type records[R record] struct {
	dir   string
	turns keyedLock // one operation per key at a time

	mu    sync.Mutex
	known map[string]R // guarded by mu
}

// openRecords reads the records in a directory. What a crash has left
// half-written is removed; a record that cannot be read is an error, because what
// it names would be taken for garbage.
func openRecords[R record](dir string) (*records[R], error) {
	s := &records[R]{dir: dir, known: make(map[string]R)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		r, err := readRecord[R](path)
		if err == nil && r.key() != name {
			err = fmt.Errorf("it is of %q", r.key())
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		s.known[name] = r
	}
	return s, nil
}

func readRecord[R record](path string) (r R, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return r, err
	}
	if st.Size() > maxRecord {
		return r, fmt.Errorf("%d bytes are too many for a record", st.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return parseRecord[R](b)
}

func parseRecord[R record](b []byte) (r R, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	return r, r.check()
}

func (s *records[R]) path(key string) string { return filepath.Join(s.dir, key+recordSuffix) }

func (s *records[R]) get(key string) (R, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.known[key]
	return r, ok
}

// find returns any record that matches.
func (s *records[R]) find(match func(R) bool) (r R, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.known {
		if match(r) {
			return r, true
		}
	}
	return r, false
}

// all returns the records in order of their keys.
func (s *records[R]) all() []R {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]R, 0, len(s.known))
	for _, r := range s.known {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b R) int { return strings.Compare(a.key(), b.key()) })
	return list
}

// put makes a record durable.
func (s *records[R]) put(r R) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("BUG: a record that could not be read again: %w", err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) > maxRecord {
		return fmt.Errorf("%d bytes are too many for a record", len(b))
	}
	if err := writeDurably(s.path(r.key()), append(b, '\n')); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[r.key()] = r
	return nil
}

// remove forgets a record, durably.
func (s *records[R]) remove(key string) error {
	if err := os.Remove(s.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	delete(s.known, key)
	s.mu.Unlock()
	return syncDir(s.dir)
}

// writeDurably replaces a file in one step.
func writeDurably(path string, b []byte) error {
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
