package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// meanwhile has a manager leave its sandboxes, and another one find them after something was done
// to them.
func meanwhile(t *testing.T, m *Manager, do func()) *Manager {
	t.Helper()
	if err := m.Abandon(); err != nil {
		t.Fatal(err)
	}
	do()
	m, err := Open(t.Context(), m.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// editRecord changes the record of a cell.
func editRecord(path, field string, value any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r map[string]json.RawMessage // as it is: its numbers are large
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	if r[field], err = json.Marshal(value); err != nil {
		return err
	}
	if text, err = json.Marshal(r); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// TestLostWhileNoDaemonWatched: whatever happened to a cell before a daemon comes, each of its
// sandboxes is listed as ended with the true reason, and those of other cells go on.
func TestLostWhileNoDaemonWatched(t *testing.T) {
	m := openApart(t, true)
	bare(t, m, "x", "")
	cells := filepath.Join(m.opts.Home, "cells")
	record := func(b *box) string { return filepath.Join(cells, b.machine.Cell().Name+".json") }
	edit := func(field string, value any) func(*box) error {
		return func(b *box) error { return editRecord(record(b), field, value) }
	}
	end := func(b *box) error {
		if err := syscall.Kill(b.machine.Cell().PID, syscall.SIGKILL); err != nil {
			return err
		}
		for syscall.Kill(b.machine.Cell().PID, 0) == nil {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	cases := []struct {
		reason string
		do     func(*box) error
		alone  bool // the process goes on
	}{
		{"process PID ended while no daemon watched", end, false},
		{"process PID ended with the host, which was restarted", edit("boot", "another"), true},
		{"process PID was ended: the cell speaks version 99 of the protocol", edit("protocol", 99), false},
		{"process PID was ended: version 99 of a record", edit("version", 99), false},
		{"its record cannot be read", func(b *box) error { return os.WriteFile(record(b), []byte("{"), 0o600) }, true},
		{"there is no record of it", func(b *box) error { return os.Remove(record(b)) }, true},
		{"process PID was ended: it could not be taken over: connecting", func(b *box) error {
			return os.Remove(strings.TrimSuffix(record(b), ".json") + ".sock")
		}, false},
	}
	kept, boxes := forkBare(t, m, "x"), make([]*box, len(cases))
	for i := range cases {
		boxes[i] = forkBare(t, m, "x")
	}
	said := new(bytes.Buffer)
	m = meanwhile(t, m, func() {
		m.opts.Log = slog.New(slog.NewTextHandler(said, nil))
		for i, c := range cases {
			if err := c.do(boxes[i]); err != nil {
				t.Fatal(err)
			}
			if pid := boxes[i].machine.Cell().PID; c.alone {
				t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
			}
		}
	})
	told := func(what string) {
		t.Helper()
		if all := m.Sandboxes(); len(all) != len(cases)+1 {
			t.Errorf("%s: there are %d sandboxes", what, len(all))
		}
		if info, err := m.Sandbox(kept.id); err != nil || info.State != Running {
			t.Errorf("%s: the one in a cell that is there is %+v, %v", what, info, err)
		}
		for i, c := range cases {
			b, reason := boxes[i], strings.Replace(c.reason, "PID", fmt.Sprint(boxes[i].machine.Cell().PID), 1)
			info, err := m.Sandbox(b.id)
			if err != nil || info.State != Crashed || !strings.Contains(info.Reason, reason) {
				t.Errorf("%s: %+v, %v; want %q", what, info, err, reason)
				continue
			}
			if info.SnapshotTag != "x" || !info.CreatedAt.Equal(b.created) || info.VCPUs != 1 || info.PID != b.machine.Cell().PID || info.MemoryMiB != b.manifest.MemoryMiB {
				t.Errorf("%s: it is %+v", what, info)
			}
			_, err = m.Eval(t.Context(), b.id, "1", 0)
			wantCode(t, what, err, SandboxDead, reason)
		}
	}
	told("the next daemon")
	m = meanwhile(t, m, func() {
		if n := strings.Count(said.String(), "a sandbox of an earlier daemon is lost"); n != len(cases) {
			t.Errorf("the log says %d times that one is lost: %s", n, said)
		}
	})
	told("the one after that")
}

// TestLostIsAsDead: what can be done with a sandbox of which only the journal is left is what can
// be done with any other that has ended.
func TestLostIsAsDead(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	w := spaceRecord{Version: spaceVersion, Name: "desk", BaseTag: "x", kept: kept{SnapshotTag: "x"}, CreatedAt: time.Now().UTC()}
	if err := m.spaces.Put(w); err != nil {
		t.Fatal(err)
	}
	b, desk := forkBare(t, m, "x"), occupy(t, m, "desk")
	name := b.machine.Cell().Name
	m = meanwhile(t, m, func() {
		if err := os.Remove(filepath.Join(m.opts.Home, "cells", name+".json")); err != nil {
			t.Fatal(err)
		}
	})
	ctx, reason := t.Context(), errNoRecord.Error()
	for what, err := range map[string]error{
		"pausing it":          second(m.Pause(ctx, b.id)),
		"resuming it":         second(m.Resume(ctx, b.id, 0)),
		"extending its life":  second(m.ExtendLifetime(ctx, b.id, time.Hour)),
		"measuring it":        second(m.Metrics(ctx, b.id)),
		"branching it":        second(m.Branch(ctx, b.id, BranchSpec{Tag: "y"})),
		"asking it something": second(m.Ping(ctx, b.id)),
	} {
		wantCode(t, what, err, SandboxDead, reason)
	}
	// Its limits are not known: it does not come back without them.
	wantCode(t, "rolling it back", second(m.Rollback(ctx, b.id, "x")), FailedPrecondition, reason)
	wantCode(t, "suspending its workspace", second(m.SuspendWorkspace(ctx, "desk")), FailedPrecondition, desk.id)
	if m.debts().held != 0 || m.spent.of("x").n != 0 {
		t.Error("it counts for what sandboxes take")
	}
	if err := m.Kill(b.id); err != nil {
		t.Error(err)
	}
	wantCode(t, "who asks after that", second(m.Sandbox(b.id)), NotFound, reasonKilled)
	m = meanwhile(t, m, func() {})
	wantCode(t, "who asks a daemon later", second(m.Sandbox(b.id)), NotFound, reasonKilled)
	if space, err := m.workspace("desk"); err != nil || !strings.Contains(space.Warning, reason) {
		t.Errorf("its workspace is %+v, %v", space, err)
	}
}

// TestReasonsOutliveTheDaemon: however a sandbox has ended and however the daemon did, the next one
// tells why the sandbox is not there, and of none that is there that it is lost.
func TestReasonsOutliveTheDaemon(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	killed, expired, runs, ended := forkBare(t, m, "x"), forkBare(t, m, "x"), forkBare(t, m, "x"), forkBare(t, m, "x")
	if err := m.Kill(killed.id); err != nil {
		t.Fatal(err)
	}
	if !m.drop(expired, reasonExpired) {
		t.Fatal("it is not known")
	}
	ended.giveUp("it fell over")
	m.retire(ended)
	if _, err := m.transient(t.Context(), "x"); err != nil { // a snapshot is being derived
		t.Fatal(err)
	}
	check := func(what string, states map[*box]State, reasons map[*box]string) {
		t.Helper()
		if all := m.Sandboxes(); len(all) != len(states) {
			t.Errorf("%s: listed are %+v", what, all)
		}
		for b, state := range states {
			if info, err := m.Sandbox(b.id); err != nil || info.State != state || info.Reason != reasons[b] {
				t.Errorf("%s: %+v, %v; want %s and %q", what, info, err, state, reasons[b])
			}
		}
		for b, reason := range reasons {
			if states[b] == "" {
				wantCode(t, what, second(m.Sandbox(b.id)), NotFound, reason)
			}
		}
	}
	reasons := map[*box]string{killed: reasonKilled, expired: reasonExpired, ended: "it fell over"}
	for range 2 {
		m = meanwhile(t, m, func() {})
		check("after a crash", map[*box]State{runs: Running, ended: Crashed}, reasons)
	}
	// An orderly end ends all, and leaves nothing to be listed.
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := Open(t.Context(), m.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	reasons[runs] = reasonClosed
	check("after an orderly end", nil, reasons)
}
