package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// takeOver has a manager leave its sandboxes as one that dies does, and another one find
// them. It returns what that has to say, too.
func takeOver(t *testing.T, m *Manager) (*Manager, *bytes.Buffer) {
	t.Helper()
	for _, b := range m.all() { // so that cells have heard all notes
		b.machine.Refresh()
	}
	if err := m.Abandon(); err != nil {
		t.Fatal(err)
	}
	opts, said := m.opts, new(bytes.Buffer)
	opts.Log = slog.New(slog.NewTextHandler(said, nil))
	m, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m, said
}

// all returns the sandboxes.
func (m *Manager) all() (list []*box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		list = append(list, b)
	}
	return list
}

// TestRecoverSources: what is forked from a snapshot after a restart stands on the store's
// files, whatever cells have of it, and lives where its siblings do.
func TestRecoverSources(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	bare(t, m, "y", "x")
	x, y := forkBare(t, m, "x"), forkBare(t, m, "y")
	m, said := takeOver(t, m)
	for _, old := range []*box{x, y} {
		b := m.lookup(old.id)
		if b == nil {
			t.Fatalf("sandbox of %s is lost: %s", old.tag, said)
		}
		stored, err := m.store.Open(b.tag)
		if err != nil {
			t.Fatal(err)
		}
		defer stored.Release()
		if m.warm[b.tag] != stored || b.snap != stored {
			t.Errorf("%s is not what the store has of it", b.tag)
		}
		if next := forkBare(t, m, b.tag); next.machine.Cell() != b.machine.Cell() {
			t.Errorf("the next child of %s is not with its siblings", b.tag)
		}
	}
}

// TestRecoverReplacedSource: a snapshot that has taken the tag of another is not what the
// sandboxes of that stand on.
func TestRecoverReplacedSource(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	b := forkBare(t, m, "x")
	if err := m.store.Remove("x"); err != nil {
		t.Fatal(err)
	}
	bare(t, m, "x", "")
	m, said := takeOver(t, m)
	again := m.lookup(b.id)
	if again == nil {
		t.Fatalf("it is lost: %s", said)
	}
	stored, err := m.store.Open("x")
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Release()
	if again.snap == stored || m.warm["x"] == again.snap || !again.manifest.CreatedAt.Equal(b.manifest.CreatedAt) {
		t.Error("it stands on another snapshot")
	}
	if forkBare(t, m, "x").manifest.CreatedAt.Equal(b.manifest.CreatedAt) {
		t.Error("the next child is of what was removed")
	}
}

// TestRecoverNotes: a sandbox whose note makes no sense is lost, and the log says so.
func TestRecoverNotes(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	kept := forkBare(t, m, "x")
	wrong := map[string]func(*boxNote){
		"bad id":               func(n *boxNote) { n.ID = "../" + n.ID },
		"bad name":             func(n *boxNote) { n.Workspace = "a/b" },
		"bad names":            func(n *boxNote) { n.Names.BootID = "" },
		"no snapshot":          func(n *boxNote) { n.Tag = "" },
		"bad lifetime":         func(n *boxNote) { n.LifetimeMS = -1 },
		"a front end may keep": func(n *boxNote) { n.Front, _ = json.Marshal(strings.Repeat("x", MaxFront)) },
	}
	lost := make(map[string]string) // what is wrong, by id
	for what, change := range wrong {
		b := forkBare(t, m, "x")
		lost[b.id] = what
		n := b.noteNow()
		change(&n)
		text, err := json.Marshal(n)
		if err == nil {
			err = b.machine.SetNote(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m, said := takeOver(t, m)
	for _, b := range m.all() {
		if (b.state() == Running) != (b.id == kept.id) {
			t.Errorf("sandbox %s is %s", b.id, b.state())
		}
		if what, ok := lost[b.id]; ok && !strings.Contains(b.endReason(), what) && !strings.Contains(b.endReason(), errNotTold.Error()) {
			t.Errorf("sandbox %s is lost because: %s; want %q", b.id, b.endReason(), what)
		}
		delete(lost, b.id)
	}
	if len(lost) != 0 {
		t.Errorf("nothing is told of %v", lost)
	}
	for what := range wrong {
		if !strings.Contains(said.String(), what) {
			t.Errorf("the log does not tell of %q:\n%s", what, said)
		}
	}
}

func FuzzBoxNote(f *testing.F) {
	n := boxNote{ID: "sb0123456789ab", Tag: "x", Names: goldenPaused.Names, Created: time.Unix(1, 0), Restored: time.Unix(2, 0)}
	text, err := json.Marshal(n)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"id":"..","tag":"a/b","lifetime_ms":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var n boxNote
		if json.Unmarshal(b, &n) != nil || n.check() != nil {
			return
		}
		c := n.birth(terms{})
		for _, name := range []string{c.id, c.tag, c.base, c.first, c.workspace} {
			if name != "" && !snapshot.ValidTag(name) {
				t.Errorf("accepted %q", name)
			}
		}
		if c.lifetime < 0 || c.lifetime > MaxLifetime {
			t.Errorf("accepted a lifetime of %s", c.lifetime)
		}
	})
}

// occupy has a sandbox be what a workspace runs in, as its cell knows it.
func occupy(t *testing.T, m *Manager, name string) *box {
	t.Helper()
	src, err := m.source("x")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Release()
	c := birthOf(ForkSpec{Tag: "x"})
	c.workspace = name
	b, err := m.spawn(t.Context(), src, c)
	if err == nil {
		err = m.register(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRecoverWorkspaces: however a daemon dies, each sandbox of a workspace that is found
// is the one that the workspace runs in.
func TestRecoverWorkspaces(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	occupy(t, m, "made")    // its record was not written yet
	occupy(t, m, "removed") // its record is gone
	var want []string
	for _, name := range []string{"desk", "lab"} {
		w := spaceRecord{Version: spaceVersion, Name: name, BaseTag: "x", kept: kept{SnapshotTag: "x"}, CreatedAt: time.Now().UTC()}
		if err := m.spaces.Put(w); err != nil {
			t.Fatal(err)
		}
		var last *box
		for range 5 {
			last = occupy(t, m, name)
		}
		want = append(want, last.id)
	}
	m, said := takeOver(t, m)
	var got []string
	for _, b := range m.all() {
		got = append(got, b.id)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q are left, not %q: %s", got, want, said)
	}
	for _, name := range []string{"made", "removed"} {
		if !strings.Contains(said.String(), name) {
			t.Errorf("the log does not tell of %q", name)
		}
		wantCode(t, "removing it", m.RemoveWorkspace(t.Context(), name), NotFound, name)
	}
	for _, name := range []string{"desk", "lab"} {
		if err := m.RemoveWorkspace(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if left := m.all(); len(left) != 0 {
		t.Errorf("%d sandboxes stay", len(left))
	}
}

// TestRecoverLetsGo: what a sandbox stands on that is not taken over is not kept for it.
func TestRecoverLetsGo(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	occupy(t, m, "removed")
	m, said := takeOver(t, m)
	if left := m.all(); len(left) != 0 {
		t.Fatalf("%d sandboxes stay: %s", len(left), said)
	}
	src, err := m.source("x")
	if err != nil {
		t.Fatal(err)
	}
	released := false
	src.OnRelease(func() { released = true })
	src.Release()
	if _, err := m.RemoveSnapshots([]string{"x"}, RemoveOptions{}); err != nil || !released {
		t.Errorf("somebody has it still (%v)", err)
	}
}

// TestRecoverSilentGuest: a guest that does not answer when it is taken over holds up nobody, least of
// all the daemon's start.
func TestRecoverSilentGuest(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	old := forkBare(t, m, "x")
	actor{}.play(t, old)
	old.note() // that it is awake, which its guest knows nothing of
	m, said := takeOver(t, m)
	b := m.lookup(old.id)
	if b == nil {
		t.Fatalf("it is lost: %s", said)
	}
	if b.isAwake() {
		t.Error("it was waited for")
	}
	forkBare(t, m, "x")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	wantCode(t, "who uses it waits", second(m.Ping(ctx, b.id)), Timeout, "waiting")
	// An evaluation would be interrupted in the place of what the dead daemon had evaluated.
	_, err := atOnce(ctx, b, true, func(context.Context) (*struct{}, error) {
		t.Error("something was evaluated before the guest had let go of what was")
		return nil, nil
	})
	wantCode(t, "what is evaluated waits", err, Timeout, "waiting")
}

// TestWorkspaceThatFell: that what a workspace has done is lost, because the process that it
// ran in has ended, is told to who wants it saved.
func TestWorkspaceThatFell(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	w := spaceRecord{Version: spaceVersion, Name: "desk", BaseTag: "x", kept: kept{SnapshotTag: "x"}, CreatedAt: time.Now().UTC()}
	if err := m.spaces.Put(w); err != nil {
		t.Fatal(err)
	}
	b := occupy(t, m, "desk")
	b.machine.Cell().Quit()
	<-b.machine.Done()
	_, err := m.SuspendWorkspace(t.Context(), "desk")
	wantCode(t, "suspending it", err, FailedPrecondition, b.id)
	list, err := m.Workspaces()
	if err != nil || len(list) != 1 || list[0].State != WorkspaceSuspended || !strings.Contains(list[0].Warning, b.id) {
		t.Errorf("listed as %+v, %v", list, err)
	}
	w.SuspendedAt = time.Now().Add(time.Second)
	if err := m.spaces.Put(w); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SuspendWorkspace(t.Context(), "desk"); err != nil {
		t.Errorf("suspending one that was suspended since: %v", err)
	}
}
