package control

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	maxLogLines = 1000 // of one answer
	maxEvents   = 200  // that are remembered of one sandbox
	maxJournals = 20000
)

// Levels of log entries, in order.
const (
	levelDebug = "debug"
	levelInfo  = "info"
	levelWarn  = "warn"
	levelError = "error"
)

var levels = []string{levelDebug, levelInfo, levelWarn, levelError}

// entry is a line of a log.
type entry struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// journal remembers what this API did to each sandbox. It is not kept when the
// daemon ends.
type journal struct {
	mu     sync.Mutex
	events map[string][]entry // by sandbox, oldest first; guarded by mu
}

func newJournal() *journal { return &journal{events: make(map[string][]entry)} }

// note remembers an event; fields are names and values in turn.
func (j *journal) note(id, level, message string, fields ...string) {
	e := entry{Timestamp: time.Now().UTC(), Level: level, Message: message, Fields: map[string]string{}}
	for i := 0; i+1 < len(fields); i += 2 {
		e.Fields[fields[i]] = fields[i+1]
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.events[id]; !known && len(j.events) >= maxJournals {
		for other := range j.events { // any: those of sandboxes that live are a small part
			delete(j.events, other)
			break
		}
	}
	list := append(j.events[id], e)
	j.events[id] = list[max(0, len(list)-maxEvents):]
}

func (j *journal) drop(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.events, id)
}

func (j *journal) of(id string) []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events[id])
}

// events returns what is known of a sandbox's life, oldest first.
func (a *API) events(info *sandbox.Info) []entry {
	list := a.journal.of(info.ID)
	at := func(t time.Time, message string) entry {
		return entry{Timestamp: t.UTC(), Level: levelInfo, Message: message, Fields: map[string]string{}}
	}
	if len(list) == 0 { // made otherwise, or by an earlier daemon
		list = append(list, at(info.CreatedAt, "created"))
	}
	if p := info.PausedAt; !p.IsZero() && list[len(list)-1].Message != "paused" {
		list = append(list, at(p, "paused"))
	}
	return list
}

// logQuery says which lines are wanted.
type logQuery struct {
	cursor   time.Time
	limit    int
	backward bool
	level    string
	search   string
}

func logQueryOf(q url.Values, cursor string) (logQuery, error) {
	l := logQuery{limit: maxLogLines, level: levelDebug, search: q.Get("search")}
	if text := q.Get(cursor); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > far.UnixMilli() {
			return l, invalid("%s: must be a time in milliseconds since 1970, not %q", cursor, clip(text))
		}
		l.cursor = time.UnixMilli(n)
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxLogLines {
			return l, invalid("limit: must be 0 to %d, not %q", maxLogLines, clip(text))
		}
		l.limit = n
	}
	switch d := q.Get("direction"); d {
	case "", "forward":
	case "backward":
		l.backward = true
	default:
		return l, invalid("direction: must be forward or backward, not %q", clip(d))
	}
	if text := q.Get("level"); text != "" {
		if !slices.Contains(levels, text) {
			return l, invalid("level: must be one of %s, not %q", strings.Join(levels, ", "), clip(text))
		}
		l.level = text
	}
	return l, nil
}

// pick returns the lines that are wanted, in the direction that is.
func (l logQuery) pick(list []entry) []entry {
	out := []entry{}
	if l.backward {
		slices.Reverse(list)
	}
	least := slices.Index(levels, l.level)
	for _, e := range list {
		beyond := e.Timestamp.Before(l.cursor)
		if l.backward {
			beyond = !l.cursor.IsZero() && e.Timestamp.After(l.cursor)
		}
		if beyond || slices.Index(levels, e.Level) < least || !strings.Contains(e.Message, l.search) {
			continue
		}
		if len(out) == l.limit {
			break
		}
		out = append(out, e)
	}
	return out
}

func (a *API) logs(w http.ResponseWriter, r *http.Request) error {
	l, err := logQueryOf(r.URL.Query(), "cursor")
	if err != nil {
		return err
	}
	info, _, err := a.live(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		Logs []entry `json:"logs"`
	}{l.pick(a.events(info))})
	return nil
}

// logsV1 is logs with each line in an older form besides.
func (a *API) logsV1(w http.ResponseWriter, r *http.Request) error {
	l, err := logQueryOf(r.URL.Query(), "start")
	if err != nil {
		return err
	}
	info, _, err := a.live(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	entries := l.pick(a.events(info))
	lines := []line{}
	for _, e := range entries {
		lines = append(lines, line{e.Timestamp, e.Level + " " + e.Message})
	}
	answer(w, http.StatusOK, struct {
		Logs       []line  `json:"logs"`
		LogEntries []entry `json:"logEntries"`
	}{lines, entries})
	return nil
}
