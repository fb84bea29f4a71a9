package template

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxLine    = 4 << 10 // bytes of one line of a log
	maxEntries = 20000   // lines of one log
	maxLog     = 8 << 20 // bytes of one log
)

// buildLog is the log of one build. What exceeds its limits is left out, and the
// log says so.
type buildLog struct {
	mu      sync.Mutex
	entries []Entry // guarded by mu
	bytes   int     // guarded by mu
	full    bool    // guarded by mu
}

func (l *buildLog) add(e Entry) {
	e.Message = strings.ToValidUTF8(e.Message, "\uFFFD")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full && e.Level != "error" { // why it failed is always told
		return
	}
	if !l.full && (len(l.entries) >= maxEntries || l.bytes+len(e.Message) > maxLog) {
		l.full = true
		l.entries = append(l.entries, Entry{Time: e.Time, Level: "warn", Message: "what follows is left out: the log is full"})
		if e.Level != "error" {
			return
		}
	}
	l.bytes += len(e.Message)
	l.entries = append(l.entries, e)
}

func (l *buildLog) all() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// lines is a Writer that logs what is written, a line at a time, and remembers the
// last of it. It belongs to one goroutine.
type lines struct {
	log   *buildLog
	level string
	step  string
	rest  []byte
	last  []byte
}

const lastBytes = 2 << 10 // that are remembered

func (w *lines) Write(b []byte) (int, error) {
	w.last = append(w.last, b[max(0, len(b)-lastBytes):]...)
	w.last = w.last[max(0, len(w.last)-lastBytes):]
	w.rest = append(w.rest, b...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found && len(w.rest) < maxLine {
			return len(b), nil
		}
		if len(line) > maxLine {
			line, rest = w.rest[:maxLine], w.rest[maxLine:]
		}
		w.put(line)
		w.rest = slices.Clone(rest)
	}
}

// flush logs a last line that does not end.
func (w *lines) flush() {
	if len(w.rest) > 0 {
		w.put(w.rest)
	}
	w.rest = nil
}

func (w *lines) put(line []byte) {
	w.log.add(Entry{Time: time.Now(), Level: w.level, Message: strings.TrimRight(string(line), "\r"), Step: w.step})
}
