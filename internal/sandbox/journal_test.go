package sandbox

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/forkd-dev/forkd/internal/journal"
)

// TestForksAreWrittenBeforeTheAnswer: what a fork of many writes is in the journal when it is answered, whoever
// is killed after that, and is one line for those of a cell.
func TestForksAreWrittenBeforeTheAnswer(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	results, err := m.Fork(t.Context(), ForkSpec{Tag: "x", N: 100})
	if err != nil {
		t.Fatal(err)
	}
	j := journal.Read(filepath.Join(m.opts.Home, "journal"), len(results), slog.New(slog.DiscardHandler))
	if !j.Whole() {
		t.Error("it is damaged or lacks something")
	}
	told, lines := make(map[string]journal.Sandbox), make(map[*journal.Origin]bool)
	for _, has := range j.Sandboxes() {
		told[has.ID], lines[has.Origin] = has, true
	}
	for _, r := range results {
		if has := told[r.Sandbox.ID]; has.Origin == nil || has.Tag != "x" || has.PID != r.Sandbox.PID {
			t.Errorf("of %s it tells %+v", r.Sandbox.ID, has)
		}
	}
	if len(lines) != 1 {
		t.Errorf("it takes %d lines to tell of them", len(lines))
	}
}
