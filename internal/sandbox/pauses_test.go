package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/agent/wire"
	"github.com/forkd-dev/forkd/internal/records"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// goldenPaused is testdata/paused-v1.json.
var goldenPaused = pausedRecord{
	Version: 1, ID: "sb0123456789ab", BaseTag: "pyagent",
	kept:   kept{SnapshotTag: "paused-sb0123456789ab-00112233aabb", OwnTags: []string{"paused-sb0123456789ab-0f0f0f0f0f0f", "paused-sb0123456789ab-00112233aabb"}},
	Engine: "soft", VCPUs: 2, MemoryMiB: 512, DiskMiB: 4096, BranchedFrom: "sbba9876543210",
	Names:  names{MachineID: "000102030405060708090a0b0c0d0e0f", BootID: "01234567-89ab-4cde-8f01-23456789abcd"},
	Limits: Limits{MemoryMiB: 256}, LifetimeMS: 300_000, OnTimeout: PauseOnTimeout, AutoResume: true,
	Metadata: map[string]string{"app": "a"}, Env: map[string]string{"A": "1"}, Front: json.RawMessage(`{"version":1}`),
	CreatedAt: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), PausedAt: time.Date(2026, 11, 29, 12, 5, 0, 500, time.UTC),
}

// A record that was written by any forkd of this version is read, and written as it
// was.
func TestPausedRecordGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/paused-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := records.Parse[pausedRecord](text)
	if err != nil || !reflect.DeepEqual(r, goldenPaused) {
		t.Errorf("%+v, %v", r, err)
	}
	back, err := json.Marshal(goldenPaused)
	if err != nil || string(back)+"\n" != string(text) {
		t.Errorf("%s, %v", back, err)
	}
}

func TestPausedRecordsThatAreRefused(t *testing.T) {
	for what, change := range map[string]func(*pausedRecord){
		"version 2":       func(r *pausedRecord) { r.Version = 2 },
		"bad id":          func(r *pausedRecord) { r.ID = "../x" },
		"bad tag":         func(r *pausedRecord) { r.BaseTag = "a/b" },
		`bad tag "."`:     func(r *pausedRecord) { r.SnapshotTag = "." },
		"bad tags":        func(r *pausedRecord) { r.OwnTags = []string{"a", ""} },
		"bad names":       func(r *pausedRecord) { r.Names.BootID = "x" },
		"bad memory":      func(r *pausedRecord) { r.Limits.MemoryMiB = -1 },
		"bad lifetime":    func(r *pausedRecord) { r.LifetimeMS = -1 },
		"unknown action":  func(r *pausedRecord) { r.OnTimeout = "sleep" },
		"malformed varia": func(r *pausedRecord) { r.Env = map[string]string{"A=": "1"} },
		"metadata has":    func(r *pausedRecord) { r.Metadata = map[string]string{"a": strings.Repeat("x", MaxMetadataBytes)} },
		"environment has": func(r *pausedRecord) { r.Env = map[string]string{"a": strings.Repeat("x", MaxEnvBytes)} },
		"front end":       func(r *pausedRecord) { r.Front = json.RawMessage(`"` + strings.Repeat("x", MaxFront) + `"`) },
	} {
		r := goldenPaused
		change(&r)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		word, _, _ := strings.Cut(what, ` "`)
		if _, err := records.Parse[pausedRecord](text); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzPausedRecord(f *testing.F) {
	text, err := os.ReadFile("testdata/paused-v1.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"id":"sb000000000000","base_tag":"a","on_timeout":"kill"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := records.Parse[pausedRecord](b)
		if err != nil {
			return
		}
		for _, name := range append([]string{r.ID, r.BaseTag}, r.OwnTags...) {
			if !snapshot.ValidTag(name) {
				t.Errorf("accepted %q", name)
			}
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := records.Parse[pausedRecord](again); err != nil {
			t.Errorf("%s was accepted, and is refused as %s: %v", b, again, err)
		}
	})
}

// What is written for a pause cannot be removed by the way before the record names it, as it cannot
// be afterwards.
func TestStateIsKeptBeforeItIsNamed(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	actor{wire.OpBranch: standStill}.play(t, b)
	refused := func(when, tag, words string) {
		t.Helper()
		for _, opts := range []RemoveOptions{{}, {Force: true}, {Cascade: true}} {
			wantCode(t, when, second(m.RemoveSnapshots([]string{tag}, opts)), InUse, words)
		}
	}
	k, err := m.save(t.Context(), b, "paused-"+b.id, b.base, kept{}, func(k kept) error {
		if k.SnapshotTag != "" { // it is written
			refused("before it is named", k.SnapshotTag, "being made")
			wantCode(t, "with what it was made from", second(m.RemoveSnapshots([]string{"base"}, RemoveOptions{Cascade: true})), InUse, "being made")
		}
		return m.paused.Put(recordOf(b, k))
	})
	if err != nil {
		t.Fatal(err)
	}
	refused("when it is named", k.SnapshotTag, b.id)
	if !m.store.Exists(k.SnapshotTag) || m.lookup(b.id) != b {
		t.Error("something was removed")
	}
}

// A kill that cannot be made durable says so, and can be repeated; on a disk that takes nothing
// more it need not be.
func TestKillOfWhatCannotBeForgotten(t *testing.T) {
	home := t.TempDir()
	m := openBare(t, home)
	bare(t, m, "base", "")
	r := goldenPaused
	r.BaseTag, r.kept = "base", kept{SnapshotTag: "paused-x", OwnTags: []string{"paused-x"}}
	save := func() {
		t.Helper()
		bare(t, m, "paused-x", "base")
		if err := m.paused.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	// path is where the record lies. One that is a directory with something in it can be
	// neither replaced nor removed.
	path := filepath.Join(home, "sandboxes", r.ID+".json")
	block := func() {
		t.Helper()
		if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	save()
	block()
	wantCode(t, "killing it", m.Kill(r.ID), Internal, r.ID)
	if info := describe(t, m, r.ID); info.State != Paused || !m.store.Exists("paused-x") {
		t.Errorf("it was not killed, and is %+v", info)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		if err := m.Kill(r.ID); err != nil {
			t.Error(err)
		}
		wantCode(t, "what was killed", second(m.Sandbox(r.ID)), NotFound, reasonKilled)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) || m.store.Exists("paused-x") {
			t.Errorf("something of it is left: %v", err)
		}
	}
	gone()
	// An empty one can be removed, as a record can be on a full disk.
	save()
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	gone()
}

// What a crash leaves in the middle of a pause or of a kill is swept, and what was
// saved stays.
func TestSweepOfPauses(t *testing.T) {
	home := t.TempDir()
	m := openBare(t, home)
	bare(t, m, "base", "")
	put := func(id, snapshot string, own ...string) {
		t.Helper()
		r := goldenPaused
		r.ID, r.BaseTag, r.kept = id, "base", kept{SnapshotTag: snapshot, OwnTags: own}
		for _, tag := range own {
			if tag != "paused-lost" {
				bare(t, m, tag, "base")
			}
		}
		if err := m.paused.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	put("sb000000000001", "paused-1b", "paused-1a", "paused-1b") // paused twice
	put("sb000000000002", "", "paused-2a")                       // written, not named
	put("sb000000000003", "", "paused-lost")                     // noted only
	put("sb000000000004", "paused-4a", "paused-4a", "paused-lost")
	if info, err := m.Sandbox("sb000000000001"); err != nil || info.State != Paused || info.SnapshotTag != "base" {
		t.Errorf("%+v, %v", info, err)
	}
	_, err := m.Sandbox("sb000000000002")
	wantCode(t, "one that was never paused", err, NotFound, "")
	_, err = m.RemoveSnapshots([]string{"paused-1b"}, RemoveOptions{Force: true})
	wantCode(t, "what it resumes from", err, InUse, "paused sandbox: sb000000000001")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "sandboxes", ".tmp-1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = openBare(t, home)
	var ids []string
	for _, info := range m.Sandboxes() {
		ids = append(ids, info.ID)
	}
	if !slices.Equal(ids, []string{"sb000000000001", "sb000000000004"}) {
		t.Errorf("left are %q", ids)
	}
	files, _ := os.ReadDir(filepath.Join(home, "sandboxes"))
	if len(files) != 2 || m.store.Exists("paused-1a") || m.store.Exists("paused-2a") || !m.store.Exists("paused-1b") || !m.store.Exists("paused-4a") {
		t.Errorf("%d records are left, or the wrong snapshots", len(files))
	}
	if err := m.Kill("sb000000000001"); err != nil || m.store.Exists("paused-1b") || !m.store.Exists("base") {
		t.Errorf("killing it: %v", err)
	}
	// One whose snapshot is damaged is listed, says so, and can be killed.
	if err := os.Truncate(filepath.Join(m.store.Dir("paused-4a"), "state.bin"), 1); err != nil {
		t.Fatal(err)
	}
	if info, err := m.Sandbox("sb000000000004"); err != nil || info.Reason == "" || info.State != Paused {
		t.Errorf("%+v, %v", info, err)
	}
	wantCode(t, "resuming what is damaged", second(m.Resume(t.Context(), "sb000000000004", 0)), NotBootable, "")
	if err := m.Kill("sb000000000004"); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "sandboxes", "sb000000000009.json"), []byte(`{"version":7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), m.opts)
	wantCode(t, "a record of the future", err, Internal, "version 7")
}

// TestPauseDuringASweep: a pause that succeeds while what was cut short is removed is not forgotten.
func TestPauseDuringASweep(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "x", "")
	bare(t, m, "left", "")
	b := forkBare(t, m, "x")
	for id, tag := range map[string]string{b.id: "paused-never", "sb000000000000": "left"} { // first pauses that were cut short
		cut := goldenPaused
		cut.ID, cut.BaseTag, cut.kept = id, "x", kept{OwnTags: []string{tag}}
		if err := m.paused.Put(cut); err != nil {
			t.Fatal(err)
		}
	}
	removable := m.tags.share("left")
	swept := make(chan struct{})
	go func() {
		m.sweepKept()
		close(swept)
	}()
	time.Sleep(100 * time.Millisecond) // it is at the other one
	pauseBare(t, m, b)
	removable()
	<-swept
	if info, err := m.Sandbox(b.id); err != nil || info.State != Paused {
		t.Errorf("what was paused is %+v, %v", info, err)
	}
}

// What a sandbox is given is checked, and copied.
func TestTerms(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "base", "")
	many := make(map[string]string)
	for i := range MaxEnv + 1 {
		many[strings.Repeat("x", i+1)] = ""
	}
	for what, spec := range map[string]ForkSpec{
		"too many variables": {Env: many},
		"too much metadata":  {Metadata: many},
		"a bad variable":     {Env: map[string]string{"": "1"}},
		"a NUL":              {Env: map[string]string{"A": "\x00"}},
		"an unknown action":  {OnTimeout: "sleep"},
		"a broken front":     {Front: json.RawMessage("{")},
	} {
		spec.Tag, spec.N = "base", 1
		wantCode(t, what, second(m.Fork(t.Context(), spec)), InvalidArgument, "")
	}
	given := map[string]string{"a": "b"}
	r, err := m.Fork(t.Context(), ForkSpec{Tag: "base", N: 1, Metadata: given, Env: given})
	if err != nil {
		t.Fatal(err)
	}
	given["a"] = "c"
	info := describe(t, m, r[0].Sandbox.ID)
	if info.Metadata["a"] != "b" || info.OnTimeout != KillOnTimeout || info.AutoResume {
		t.Errorf("%+v", info)
	}
	if got := over(map[string]string{"A": "1", "B": "2"}, map[string]string{"B": "3"}); got["A"] != "1" || got["B"] != "3" || len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// Whoever waits for a lock gets it in the order of asking, and who gives up is passed
// over.
func TestKeyedLockIsFair(t *testing.T) {
	var locks keyedLock
	if !locks.try("a") || locks.try("a") || !locks.try("b") {
		t.Fatal("the locks are not what they should be")
	}
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	impatient, giveUp := context.WithCancel(t.Context())
	waiting := func() int {
		locks.mu.Lock()
		defer locks.mu.Unlock()
		return len(locks.held["a"])
	}
	for i := range 10 {
		ctx := t.Context()
		if i%3 == 1 {
			ctx = impatient
		}
		all.Go(func() {
			if err := locks.take(ctx, "a"); err != nil {
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			locks.release("a")
		})
		for waiting() <= i {
			time.Sleep(time.Millisecond)
		}
	}
	giveUp()
	for waiting() > 7 {
		time.Sleep(time.Millisecond)
	}
	locks.release("a")
	all.Wait()
	if !slices.Equal(order, []int{0, 2, 3, 5, 6, 8, 9}) {
		t.Errorf("the order was %v", order)
	}
	if locks.release("b"); len(locks.held) != 0 {
		t.Errorf("held are %v", locks.held)
	}
}

// A tree is in the order of its names, each directory before what is in it.
func TestComparePaths(t *testing.T) {
	want := []string{"/a", "/a/b", "/a/b/c", "/a/b!", "/a/bc", "/a-", "/ab", "/b"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, comparePaths)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
