package sandbox

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// forkBare makes a child of a bare snapshot.
func forkBare(t *testing.T, m *Manager, tag string) *box {
	t.Helper()
	r, err := m.Fork(t.Context(), ForkSpec{Tag: tag, N: 1})
	if err != nil || r[0].Err != nil {
		t.Fatalf("forking %s: %v, %v", tag, r, err)
	}
	b, err := m.box(r[0].Sandbox.ID)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// branchBare makes a branch of a bare sandbox that stands on nothing.
func branchBare(t *testing.T, m *Manager, b *box, tag string) {
	t.Helper()
	c := &cut{box: b, origin: b.origin()}
	defer c.release()
	var err error
	if c.frozen, err = b.machine.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.store.Create(t.Context(), c.manifest(m, BranchSpec{Tag: tag, Mode: BranchFull}), c.contents(true)); err != nil {
		t.Fatal(err)
	}
}

// rollBare does to a sandbox without an agent what a rollback does.
func rollBare(t *testing.T, m *Manager, b *box, tag string) *box {
	t.Helper()
	src, err := m.source(tag)
	if err != nil {
		t.Fatal(err)
	}
	next, err := m.spawn(t.Context(), src, birth{id: b.id, tag: tag, first: b.first, workspace: b.workspace, created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.replace(b, next); err != nil {
		t.Fatal(err)
	}
	return next
}

// A sandbox that was rolled back to a branch that stands on nothing can still go
// back to where it began, and each way is named once.
func TestPast(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "root", "")
	bare(t, m, "base", "root")
	bare(t, m, "foreign", "")
	old := forkBare(t, m, "base")
	branchBare(t, m, old, "one")
	branchBare(t, m, old, "two")
	b := rollBare(t, m, old, "one")
	if got, want := m.past(b), []string{"one", "base", "root", "two"}; !slices.Equal(got, want) {
		t.Errorf("it can go back to %q, want %q", got, want)
	}
	for _, tag := range []string{"one", "base", "root", "two"} {
		if err := m.descends(b, tag); err != nil {
			t.Errorf("back to %s: %v", tag, err)
		}
	}
	err := m.descends(b, "foreign")
	wantCode(t, "a foreign one", err, FailedPrecondition, "foreign")
	if e := new(Error); !errors.As(err, &e) || !strings.HasSuffix(e.Hint, "go back to one, base, root, two") {
		t.Errorf("the hint is %q", e.Hint)
	}
	if _, err := m.RemoveSnapshots([]string{"base"}, RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := m.past(b), []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("with base gone it can go back to %q, want %q", got, want)
	}
	// Whoever has called the old machine learns that the sandbox goes on.
	wantCode(t, "a call that was cut short", old.dead(), Unavailable, "the sandbox runs on")
	m.drop(b, reasonKilled)
	wantCode(t, "a call to what was killed", b.dead(), SandboxDead, reasonKilled)
	nodes, err := m.Tree()
	if err != nil || len(nodes) != 4 {
		t.Errorf("%+v, %v", nodes, err)
	}
}

// The sandbox of a workspace that runs is not ended by the way.
func TestWorkspaceIsNotKilled(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	bare(t, m, "ws-desk-1", "base")
	record := spaceRecord{
		Version: spaceVersion, Name: "desk", BaseTag: "base", kept: kept{SnapshotTag: "ws-desk-1", OwnTags: []string{"ws-desk-1"}},
		CreatedAt: time.Now().UTC(),
	}
	if err := m.spaces.Put(record); err != nil {
		t.Fatal(err)
	}
	hint := func(err error) string {
		if e, ok := errors.AsType[*Error](err); ok {
			return e.Hint
		}
		return ""
	}
	// Suspended: its state stands on base, which --cascade could not remove.
	_, err := m.RemoveSnapshots([]string{"base"}, RemoveOptions{})
	wantCode(t, "what its state stands on", err, InUse, "1 snapshot: ws-desk-1 and by 1 workspace: desk")
	if !strings.Contains(hint(err), "`forkd workspace rm desk`") {
		t.Errorf("the hint is %q", hint(err))
	}
	_, err = m.RemoveSnapshots([]string{"base"}, RemoveOptions{Cascade: true})
	wantCode(t, "with its state", err, InUse, "1 workspace: desk")
	// Its name is no id, which who uses one so is told.
	_, err = m.Eval(t.Context(), "desk", "1", 0)
	wantCode(t, "evaluating in its name", err, NotFound, `no sandbox "desk"`)
	if h := hint(err); !strings.Contains(h, "is a workspace: use `forkd workspace exec`") || strings.Contains(h, "its sandbox") {
		t.Errorf("the hint is %q", h)
	}

	b := forkBare(t, m, "base")
	b.workspace = "desk"
	if h := hint(m.Kill("desk")); !strings.Contains(h, "its sandbox, "+b.id) {
		t.Errorf("the hint is %q", h)
	}
	err = m.Kill(b.id)
	wantCode(t, "a workspace", err, InUse, `workspace "desk"`)
	if h := hint(err); !strings.Contains(h, "`forkd workspace suspend desk`") || !strings.Contains(h, "`forkd workspace rm desk`") {
		t.Errorf("the hint is %q", h)
	}
	_, err = m.RemoveSnapshots([]string{"base"}, RemoveOptions{Force: true})
	wantCode(t, "what it runs from", err, InUse, "desk")
	if b.state() != Running {
		t.Fatalf("it is %s", b.state())
	}
	b.giveUp("the guest crashed")
	if err := m.Kill(b.id); err != nil {
		t.Errorf("one that has crashed: %v", err)
	}
}

func TestCommandError(t *testing.T) {
	for output, want := range map[string]string{
		"":        `command "make it" exited with 3`,
		" \n":     `command "make it" exited with 3`,
		"\nwhy\n": `command "make it" exited with 3: why`,
	} {
		if e := commandError([]string{"make", "it"}, 3, output); e.Error() != want || e.Code != CommandFailed {
			t.Errorf("%q: %s: %s", output, e.Code, e)
		}
	}
}

// A child that was rolled back to its own branch does not come from itself.
func TestTreeAfterRollback(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	branchBare(t, m, b, "cyc")
	rollBare(t, m, b, "cyc")
	nodes, err := m.Tree()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.Kind == TreeSandbox && (n.Name != b.id || n.Parent != "cyc" || n.Source != "") || n.Name == "cyc" && n.Source != b.id {
			t.Errorf("%+v", n)
		}
	}
	if len(nodes) != 3 {
		t.Errorf("%d nodes", len(nodes))
	}
}
