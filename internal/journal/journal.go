package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Journal is the journal of a home.
type Journal struct {
	path  string
	log   *slog.Logger
	whole bool // immutable; see Whole

	mu      sync.Mutex
	known   *ledger     // guarded by mu, but for what has departed
	writes  bool        // it is opened; guarded by mu
	file    *os.File    // nil: it could not be made; guarded by mu
	is      os.FileInfo // of file; guarded by mu
	size    int64       // of the file; guarded by mu
	short   int64       // its size when it was written anew; guarded by mu
	failing time.Time   // since then the file lacks something; zero: it does not; guarded by mu
}

const (
	// maxJournal is how much is read of a journal, in bytes. It never gets as long as that.
	maxJournal = 64 << 20
	// growth is by how much a journal may grow, in bytes, beyond twice its size, until it is
	// written anew.
	growth = 1 << 20
	// mendAfter is when a journal that could not be written is tried again.
	mendAfter = time.Second
)

// Read returns the journal of a home, as an earlier daemon has left it; most is how many sandboxes there can be,
// those that have ended and are listed among them. Nothing is written until it is opened.
func Read(path string, most int, log *slog.Logger) *Journal {
	j := &Journal{path: path, log: log, known: newLedger(most)}
	j.known.lacks = true
	text, err := readBounded(path, maxJournal)
	if err == nil {
		j.known, err = readLedger(text, most)
	}
	j.whole = !j.known.lacks
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the journal of sandboxes is damaged or lacks something; what it does not tell is not known", "path", path, "error", err)
	}
	return j
}

// readBounded reads a file that may be anything.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is not a regular file"))
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// Whole reports whether an earlier daemon has written all that it knew, and knew all; and that was read.
func (j *Journal) Whole() bool { return j.whole }

// Open has what happens from now on be written down, and sandboxes that have gone be forgotten when there are too
// many. deaf returns the names of the cells that may not have heard yet of those that have gone.
func (j *Journal) Open(deaf func() map[string]bool) {
	j.known.departed.forgetting(deaf)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes = true
	j.did(j.rewrite())
}

// Complete notes that nothing is missing any more: all processes have told what lives in them, or are gone.
func (j *Journal) Complete() {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.known.lacks
	if j.known.lacks = false; before && j.writes {
		j.did(j.rewrite())
	}
}

// Close has nothing be written any more.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.writes && (!j.failing.IsZero() || !j.intact()) {
		j.did(j.rewrite())
	}
	if j.file != nil {
		j.file.Close()
	}
	j.writes, j.file = false, nil
}

// Siblings are sandboxes that were made together, in one cell. They have one line, so that a hundred of them cost
// hardly more than one.
type Siblings struct {
	IDs []string
	Origin
}

// Began notes sandboxes that are there, in one go.
func (j *Journal) Began(made ...Siblings) {
	entries := make([]*entry, len(made))
	for i, s := range made {
		entries[i] = &entry{Event: began, IDs: s.IDs, Origin: s.Origin}
	}
	j.add(entries...)
}

// Ended notes a sandbox that has ended by itself.
func (j *Journal) Ended(id string, in State, reason string) {
	j.add(&entry{Event: ended, IDs: []string{id}, State: in, Reason: ShortReason(reason)})
}

// Gone notes sandboxes that are not listed any more, in one go; without a reason those
// that nobody will ask for.
func (j *Journal) Gone(reason string, ids ...string) {
	j.add(&entry{Event: gone, IDs: ids, Reason: ShortReason(reason)})
}

// Reason tells why a sandbox has gone; "" if that is not known.
func (j *Journal) Reason(id string) string { return j.known.departed.reason(id) }

// Outdated reports whether a sandbox is gone, for a reason, or has a machine that was made later.
func (j *Journal) Outdated(id string, made time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if has := j.known.listed[id]; has != nil {
		return has.Restored.After(made)
	}
	return j.known.departed.reason(id) != ""
}

// Sandboxes returns what was noted of sandboxes that are not gone: first those that have ended, in that order.
func (j *Journal) Sandboxes() []Sandbox {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.known.sandboxes()
}

// add notes what happened, with one write.
func (j *Journal) add(entries ...*entry) {
	var text []byte
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		if j.known.add(e) && j.writes {
			text = append(text, e.line()...)
		}
	}
	switch {
	case len(text) == 0:
	case !j.failing.IsZero():
		if time.Since(j.failing) > mendAfter {
			j.did(j.rewrite())
		}
	case j.size+int64(len(text)) > 2*j.short+growth, !j.intact():
		j.did(j.rewrite())
	default:
		n, err := j.file.Write(text)
		j.size += int64(n)
		j.did(err)
	}
}

// intact reports whether the file is where it was put, and what was written to it. If somebody has removed
// or changed it, a later daemon would not read what is appended.
func (j *Journal) intact() bool {
	now, err := os.Lstat(j.path)
	if err == nil && os.SameFile(now, j.is) && now.Size() == j.size {
		return true
	}
	j.log.Warn("the journal of sandboxes was removed or changed, and is written anew", "path", j.path, "error", err)
	return false
}

// did takes note of what has become of writing. It is told once that it fails.
func (j *Journal) did(err error) {
	switch {
	case err == nil && !j.failing.IsZero():
		j.log.Info("the journal of sandboxes is written again", "path", j.path)
	case err != nil && j.failing.IsZero():
		j.log.Error("the journal of sandboxes cannot be written; a later daemon may not know what has become of some", "path", j.path, "error", err)
	}
	if j.failing = (time.Time{}); err != nil {
		j.failing = time.Now()
		j.mark()
	}
}

// mark has the file say that it lacks something, if it says that it is whole. That takes no room on a disk that is
// full.
func (j *Journal) mark() {
	whole := headingOf(current)
	f, err := os.OpenFile(j.path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return // it cannot be taken for whole, or nothing can be done, as the log says already
	}
	defer f.Close()
	first := make([]byte, len(whole))
	if _, err := f.ReadAt(first, 0); err == nil && bytes.Equal(first, whole) {
		_, _ = f.WriteAt(headingOf(lacking), 0) // as above
	}
}

// rewrite replaces the file by the shortest that tells the same.
func (j *Journal) rewrite() error {
	text := j.known.lines()
	aside := j.path + ".new"
	_ = os.Remove(aside) // that a crash has left; what else is in the way is the next line's error
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	is, statErr := f.Stat()
	if err = errors.Join(err, statErr); err == nil {
		err = os.Rename(aside, j.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing it anew: %w", err), f.Close(), os.Remove(aside))
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.is, j.size, j.short = f, is, int64(len(text)), int64(len(text))
	return nil
}
