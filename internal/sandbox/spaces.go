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
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// spaceVersion is the version of workspaces' records.
const spaceVersion = 1

const (
	spaceSuffix = ".json"
	maxSpace    = 64 << 10 // bytes of a record
)

// spaceRecord is what is kept of a workspace. Whether it runs is not: after a
// crash it does not.
type spaceRecord struct {
	Version        int       `json:"version"`
	Name           string    `json:"name"`
	BaseTag        string    `json:"base_tag"`           // it began with
	SnapshotTag    string    `json:"snapshot_tag"`       // it resumes from
	OwnTags        []string  `json:"own_tags,omitempty"` // made for it; gone once it does not resume from them
	MemoryLimitMiB int       `json:"memory_limit_mib,omitempty"`
	CreatedAt      time.Time `json:"created_at"`
	SuspendedAt    time.Time `json:"suspended_at,omitzero"`
}

// spaces are the records of workspaces, a file each. A record is replaced in one
// step and is durable before the step counts.
type spaces struct {
	dir   string
	turns keyedLock // one operation per workspace at a time

	mu    sync.Mutex
	known map[string]spaceRecord // guarded by mu
}

// openSpaces reads the records under home. What a crash has left half-written is
// removed; a record that cannot be read is an error, because what it resumes from
// would be taken for garbage.
func openSpaces(home string) (*spaces, error) {
	s := &spaces{dir: filepath.Join(home, "workspaces"), known: make(map[string]spaceRecord)}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		name, ok := strings.CutSuffix(e.Name(), spaceSuffix)
		if !ok {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		w, err := readSpace(path)
		if err == nil && w.Name != name {
			err = fmt.Errorf("it is of workspace %q", w.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("reading workspace %s: %w", path, err)
		}
		s.known[name] = w
	}
	return s, nil
}

func readSpace(path string) (w spaceRecord, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return w, err
	}
	if st.Size() > maxSpace {
		return w, fmt.Errorf("%d bytes are too many for a record", st.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return w, err
	}
	return parseSpace(b)
}

func parseSpace(b []byte) (w spaceRecord, err error) {
	if err := json.Unmarshal(b, &w); err != nil {
		return w, err
	}
	switch {
	case w.Version != spaceVersion:
		err = fmt.Errorf("version %d, this forkd reads version %d", w.Version, spaceVersion)
	case !snapshot.ValidTag(w.Name):
		err = fmt.Errorf("bad name %q", w.Name)
	case !snapshot.ValidTag(w.BaseTag) || !snapshot.ValidTag(w.SnapshotTag):
		err = fmt.Errorf("bad tags %q and %q", w.BaseTag, w.SnapshotTag)
	case slices.ContainsFunc(w.OwnTags, func(tag string) bool { return !snapshot.ValidTag(tag) }):
		err = fmt.Errorf("bad tags %q", w.OwnTags)
	case w.MemoryLimitMiB < 0:
		err = fmt.Errorf("bad memory limit %d", w.MemoryLimitMiB)
	}
	return w, err
}

func (s *spaces) path(name string) string { return filepath.Join(s.dir, name+spaceSuffix) }

func (s *spaces) get(name string) (spaceRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.known[name]
	return w, ok
}

// all returns the records in order of the names.
func (s *spaces) all() []spaceRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]spaceRecord, 0, len(s.known))
	for _, w := range s.known {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b spaceRecord) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// put makes a record durable.
func (s *spaces) put(w spaceRecord) error {
	w.Version = spaceVersion
	b, err := json.MarshalIndent(w, "", "  ")
	if err != nil {
		return err
	}
	if err := writeDurably(s.path(w.Name), append(b, '\n')); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[w.Name] = w
	return nil
}

// remove forgets a workspace.
func (s *spaces) remove(name string) error {
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	delete(s.known, name)
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
