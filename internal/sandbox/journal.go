package sandbox

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

	"github.com/forkd-dev/forkd/internal/cell"
)

// journal tells a later daemon which sandboxes there are, and why others are not there any
// more. What a sandbox is its cell knows; the journal is for when the cell is gone, too.
//
// It outlives processes and is not synced: a loss of power may take what was written last.
// What it lacks ends no sandbox, and that it lacks something it says until all is known again: a process of
// an earlier daemon may outlive several that have not heard of it. What cannot be read or written of it is told in the log, and whoever
// wanted that goes on. But a machine that it says is not its sandbox's any more is closed.
type journal struct {
	path  string
	log   *slog.Logger
	whole bool // an earlier daemon has written all that it knew, and knew all; and that was read

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

// readJournal returns the journal of a home as an earlier daemon has left it. Nothing is
// written to it until it is opened.
func readJournal(path string, log *slog.Logger) *journal {
	j := &journal{path: path, log: log, known: &ledger{lacks: true}}
	text, err := readBounded(path, maxJournal)
	if err == nil {
		j.known, err = readLedger(text)
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

// open has what happens from now on be written down.
func (j *journal) open() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes = true
	j.did(j.rewrite())
}

// complete notes that nothing is missing any more: all processes have told what lives in them, or are gone.
func (j *journal) complete() {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.known.lacks
	if j.known.lacks = false; before && j.writes {
		j.did(j.rewrite())
	}
}

// close has nothing be written any more.
func (j *journal) close() {
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

// began notes sandboxes that are there, in one go. Those made together have most in common.
func (j *journal) began(boxes ...*box) {
	var entries []*entry
	var last *cell.Cell
	for _, b := range boxes {
		if b.fleeting { // nobody knows it yet, or ever will
			continue
		}
		if home := b.machine.Cell(); home != last {
			entries, last = append(entries, &entry{Event: began, origin: originOf(b)}), home
		}
		e := entries[len(entries)-1]
		e.IDs = append(e.IDs, b.id)
	}
	j.add(entries...)
}

func originOf(b *box) origin {
	home := b.machine.Cell()
	runs := b.tag
	if runs == b.base {
		runs = ""
	}
	return origin{
		Tag: b.base, Runs: runs, Source: b.source, Workspace: b.workspace, Cell: home.Name, PID: home.PID,
		VCPUs: b.manifest.VCPUs, MemoryMiB: b.manifest.MemoryMiB, DiskMiB: diskMiB(b.manifest),
		Created: b.created.UTC().Round(0), Restored: b.restored.UTC().Round(0),
	}
}

// ended notes a sandbox that has ended by itself.
func (j *journal) ended(b *box) {
	j.add(&entry{Event: ended, IDs: []string{b.id}, State: b.state(), Reason: shortReason(b.endReason())})
}

// gone notes sandboxes that are not listed any more, in one go; without a reason those
// that nobody will ask for.
func (j *journal) gone(reason string, ids ...string) {
	j.add(&entry{Event: gone, IDs: ids, Reason: shortReason(reason)})
}

// reason tells why a sandbox has gone; "" if that is not known.
func (j *journal) reason(id string) string { return j.known.departed.reason(id) }

// outdated reports whether a sandbox is gone, for a reason, or has a machine that was made later.
func (j *journal) outdated(id string, made time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if has := j.known.listed[id]; has != nil {
		return has.Restored.After(made)
	}
	return j.known.departed.reason(id) != ""
}

// sandboxes returns what was noted of sandboxes that are not gone.
func (j *journal) sandboxes() []listing {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.known.sandboxes()
}

// add notes what happened, with one write.
func (j *journal) add(entries ...*entry) {
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
func (j *journal) intact() bool {
	now, err := os.Lstat(j.path)
	if err == nil && os.SameFile(now, j.is) && now.Size() == j.size {
		return true
	}
	j.log.Warn("the journal of sandboxes was removed or changed, and is written anew", "path", j.path, "error", err)
	return false
}

// did takes note of what has become of writing. It is told once that it fails.
func (j *journal) did(err error) {
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
func (j *journal) mark() {
	whole := headingOf(journalVersion)
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
func (j *journal) rewrite() error {
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
