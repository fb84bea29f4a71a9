package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/records"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// softEngine is what machines of tests run on.
var softEngine = Engine{Name: "soft", ISA: engine.RISCV64, Features: soft.New(1).Features()}

// within has machines live in this process, with engines of so many threads.
func within(threads int) cell.Launcher {
	return &cell.Within{NewEngine: func() engine.Engine { return soft.New(threads) }}
}

// openBare opens a manager over a home in which machines without an agent can be
// forked: they exist, and nothing runs in them.
func openBare(t *testing.T, home string) *Manager {
	t.Helper()
	m, err := Open(context.Background(), Options{
		Home: home, Engine: softEngine, Cells: within(1), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// bare makes a snapshot of a machine that was never started; parent may be empty.
func bare(t *testing.T, m *Manager, tag, parent string) {
	t.Helper()
	if parent != "" {
		b, err := m.transient(t.Context(), parent)
		if err != nil {
			t.Fatal(err)
		}
		defer m.drop(b, reasonDerived)
		c := &cut{box: b, origin: b.origin()}
		defer c.release()
		if c.frozen, err = b.machine.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		man := c.manifest(m, BranchSpec{Tag: tag, Mode: BranchDiff})
		man.Held = 0
		if err := m.store.Create(t.Context(), man, c.contents(false)); err != nil {
			t.Fatal(err)
		}
		return
	}
	root := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(root, make([]byte, page.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	disk, err := snapshot.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Release()
	// A header as the boot protocol wants it, behind which there is nothing.
	kernel := binary.LittleEndian.AppendUint64(make([]byte, 8), 2<<20)
	kernel = binary.LittleEndian.AppendUint64(kernel, 64<<10)
	kernel = append(append(kernel, make([]byte, 24)...), "RISCV\x00\x00\x00RSC\x05\x00\x00\x00\x00"...)
	kernelFile := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(kernelFile, kernel, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(kernelFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	home, err := m.cells.Fresh()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Quit()
	v, err := home.Boot(t.Context(), cell.BootSpec{
		VCPUs: 1, Root: disk, Memory: board.MinRAMBytes / page.Size, Scratch: 16, Raw: true, Kernel: file,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	f, err := v.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	man := snapshot.Manifest{Tag: tag, CreatedAt: time.Now(), Engine: "soft", ISA: string(engine.RISCV64), VCPUs: 1, MemoryMiB: board.MinRAMBytes >> 20}
	if err := m.store.Create(t.Context(), man, snapshot.Contents{State: f.State(), Cut: f, Root: root}); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveSnapshots(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "a", "")
	bare(t, m, "b", "a")
	bare(t, m, "c", "b")
	bare(t, m, "other", "")
	fork := func(tag string) string {
		t.Helper()
		r, err := m.Fork(t.Context(), ForkSpec{Tag: tag, N: 1})
		if err != nil || r[0].Err != nil {
			t.Fatalf("forking %s: %v, %v", tag, r, err)
		}
		return r[0].Sandbox.ID
	}
	id := fork("c")
	gone := func(id string) bool { _, err := m.Sandbox(id); return hasCode(err, NotFound) }
	remove := func(opts RemoveOptions, tags ...string) ([]string, error) { return m.RemoveSnapshots(tags, opts) }

	_, err := remove(RemoveOptions{}, "a")
	wantCode(t, "a parent", err, InUse, `1 snapshot: b`)
	_, err = remove(RemoveOptions{}, "other", "c")
	wantCode(t, "one that runs", err, InUse, id)
	_, err = remove(RemoveOptions{}, "other", "nothing")
	wantCode(t, "one that is not", err, NotFound, "nothing")
	_, err = remove(RemoveOptions{})
	wantCode(t, "nothing at all", err, InvalidArgument, "")
	_, err = remove(RemoveOptions{Force: true}, "../a")
	wantCode(t, "a path", err, InvalidArgument, "tag")
	if list, _ := m.Snapshots(); len(list) != 4 || gone(id) {
		t.Fatalf("a refused removal has changed something: %+v", list)
	}
	// A whole line at once is fine if nothing of it runs.
	if _, err := remove(RemoveOptions{}, "a", "b", "c"); !hasCode(err, InUse) {
		t.Errorf("a line with a sandbox: %v", err)
	}
	if got, err := remove(RemoveOptions{Force: true}, "a"); err != nil || !slices.Equal(got, []string{"a"}) || gone(id) {
		t.Errorf("by force: %v, %v", got, err)
	}
	if info, err := m.Snapshot("b"); err != nil || len(info.Ancestors) != 0 || !info.Bootable {
		t.Errorf("the child of what was removed by force: %+v, %v", info, err)
	}
	second := fork("b")
	if got, err := remove(RemoveOptions{Cascade: true}, "b"); err != nil || !slices.Equal(got, []string{"b", "c"}) || !gone(id) || !gone(second) {
		t.Errorf("cascade: %v, %v", got, err)
	}
	if got, err := remove(RemoveOptions{}, "other"); err != nil || !slices.Equal(got, []string{"other"}) {
		t.Errorf("plain: %v, %v", got, err)
	}
	files, _ := os.ReadDir(filepath.Join(m.opts.Home, "layers"))
	if len(files) > 0 {
		t.Errorf("layers are left: %v", files)
	}
}

// Forks, derivations and removals of the same snapshots at the same time end in
// what some order of them explains: whoever has removed a snapshot without force
// has done so before it was forked or after its children had ended, and there is
// nothing that stands on what is not there.
func TestConcurrentFamilies(t *testing.T) {
	m := openBare(t, t.TempDir())
	random := mathrand.New(mathrand.NewPCG(1, 2))
	for round := range 12 {
		root := fmt.Sprintf("r%d", round)
		bare(t, m, root, "")
		cascade := round%3 == 2
		var wg sync.WaitGroup
		var mu sync.Mutex
		var ids []string
		for i := range 6 {
			delay := time.Duration(random.IntN(3000)) * time.Microsecond
			wg.Go(func() {
				time.Sleep(delay)
				switch i {
				case 0:
					_, err := m.RemoveSnapshots([]string{root}, RemoveOptions{Cascade: cascade})
					if err != nil && !hasCode(err, InUse) {
						t.Errorf("removing %s: %v", root, err)
					}
				case 1, 2:
					tag := fmt.Sprintf("%s-whole%d", root, i)
					if _, err := m.Compact(context.Background(), root, tag); err != nil && !hasCode(err, NotFound) {
						t.Errorf("compacting %s: %v", root, err)
					}
				default:
					r, err := m.Fork(context.Background(), ForkSpec{Tag: root, N: 3})
					if err != nil {
						if !hasCode(err, NotFound) {
							t.Errorf("forking %s: %v", root, err)
						}
						return
					}
					mu.Lock()
					defer mu.Unlock()
					for _, r := range r {
						ids = append(ids, r.Sandbox.ID)
					}
				}
			})
		}
		wg.Wait()
		there := m.store.Exists(root)
		for _, id := range ids {
			_, err := m.Sandbox(id)
			if (err == nil) != there {
				t.Errorf("round %d: the snapshot is there: %v, its sandbox %s: %v", round, there, id, err)
			}
		}
		for _, e := range m.store.List() {
			if e.Err != nil {
				t.Errorf("round %d: %s: %v", round, e.Tag, e.Err)
			}
		}
		for _, id := range ids {
			m.Kill(id)
		}
	}
}

func TestWorkspaceRecords(t *testing.T) {
	home := t.TempDir()
	m := openBare(t, home)
	bare(t, m, "base", "")
	bare(t, m, "ws-desk-1", "base")
	bare(t, m, "ws-desk-2", "base")
	record := spaceRecord{
		Version: spaceVersion, Name: "desk", BaseTag: "base", CreatedAt: time.Now().UTC(),
		kept: kept{SnapshotTag: "ws-desk-1", OwnTags: []string{"ws-desk-1", "ws-desk-2"}},
	}
	if err := m.spaces.Put(record); err != nil {
		t.Fatal(err)
	}
	_, err := m.RemoveSnapshots([]string{"ws-desk-1"}, RemoveOptions{Force: true})
	wantCode(t, "what it resumes from", err, InUse, "desk")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	// A suspension that was cut short has left a snapshot, and half a record.
	if err := os.WriteFile(filepath.Join(home, "workspaces", ".tmp-1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = openBare(t, home)
	list, err := m.Workspaces()
	if err != nil || len(list) != 1 || list[0].Name != "desk" || list[0].State != WorkspaceSuspended || list[0].SnapshotTag != "ws-desk-1" {
		t.Errorf("%+v, %v", list, err)
	}
	if m.store.Exists("ws-desk-2") || !m.store.Exists("ws-desk-1") || !m.store.Exists("base") {
		t.Error("the wrong snapshots are left")
	}
	if err := m.RemoveWorkspace(t.Context(), "desk"); err != nil || m.store.Exists("ws-desk-1") || !m.store.Exists("base") {
		t.Errorf("removing it: %v", err)
	}
	for what, err := range map[string]error{
		"removing it again": m.RemoveWorkspace(t.Context(), "desk"),
		"resuming nothing":  second(m.ResumeWorkspace(t.Context(), "desk")),
		"suspending it":     second(m.SuspendWorkspace(t.Context(), "desk")),
	} {
		wantCode(t, what, err, NotFound, "desk")
	}
	wantCode(t, "a path", second(m.CreateWorkspace(t.Context(), WorkspaceSpec{Name: "../x", Tag: "base"})), InvalidArgument, "name")
	wantCode(t, "no snapshot", second(m.CreateWorkspace(t.Context(), WorkspaceSpec{Name: "x", Tag: "nowhere"})), NotFound, "nowhere")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	// What cannot be read is not taken for garbage.
	if err := os.WriteFile(filepath.Join(home, "workspaces", "desk.json"), []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), m.opts)
	wantCode(t, "a record of the future", err, Internal, "version 9")
}

func second[A any](_ A, err error) error { return err }

func FuzzParseSpace(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"desk","base_tag":"a","snapshot_tag":"b","own_tags":["b"],"created_at":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"version":1,"name":"..","base_tag":"a/b","snapshot_tag":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := records.Parse[spaceRecord](b)
		if err != nil {
			return
		}
		for _, name := range append([]string{w.Name, w.BaseTag, w.SnapshotTag}, w.OwnTags...) {
			if !snapshot.ValidTag(name) || bytes.ContainsAny([]byte(name), "/.") {
				t.Errorf("accepted %q", name)
			}
		}
	})
}

// Only so many branches are written at a time, and what became of one that was
// written behind its caller's back is remembered until the tag is used again.
func TestWritersAreBounded(t *testing.T) {
	m := openBare(t, t.TempDir())
	var free []func()
	for range maxWriting {
		f, err := m.writers.slot()
		if err != nil {
			t.Fatal(err)
		}
		free = append(free, f)
	}
	_, err := m.writers.slot()
	wantCode(t, "one more", err, CapacityExceeded, "written")
	free[0]()
	if _, err := m.writers.slot(); err != nil {
		t.Error(err)
	}
	for i := range maxFailures + 5 {
		m.noteFailure(fmt.Sprintf("f%d", i), errors.New("no luck"))
	}
	if got := m.failed(); len(got) != maxFailures {
		t.Errorf("%d failures are remembered", len(got))
	}
	info, err := m.Snapshot("f100")
	if err != nil || info.Status != "failed" || info.Bootable || info.Warning == "" || info.CreatedAt.IsZero() {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := m.RemoveSnapshots([]string{"f100"}, RemoveOptions{}); err != nil {
		t.Error(err)
	}
	_, err = m.Snapshot("f100")
	wantCode(t, "a failure that was removed", err, NotFound, "f100")
}

// Locks of tags: any number share one, the owner is alone.
func TestTagLocks(t *testing.T) {
	var locks tagLocks
	var mu sync.Mutex
	sharing, owning := 0, 0
	var wg sync.WaitGroup
	change := func(s, o int) {
		mu.Lock()
		defer mu.Unlock()
		sharing, owning = sharing+s, owning+o
		if owning > 1 || owning > 0 && sharing > 0 {
			t.Errorf("%d share what %d own", sharing, owning)
		}
	}
	for i := range 40 {
		wg.Go(func() {
			if i%4 == 0 {
				free := locks.own([]string{"b", "a", "b"}[:1+i%3])
				change(0, 1)
				change(0, -1)
				free()
				return
			}
			free := locks.share("b")
			change(1, 0)
			change(-1, 0)
			free()
		})
	}
	wg.Wait()
	if len(locks.tags) != 0 {
		t.Errorf("locks are left: %v", locks.tags)
	}
}

// TestSourceOutlivesItsRemoval: who is about to fork from a snapshot keeps it,
// whatever becomes of its tag meanwhile.
func TestSourceOutlivesItsRemoval(t *testing.T) {
	m := openBare(t, t.TempDir())
	bare(t, m, "a", "")
	src, err := m.source("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.RemoveSnapshots([]string{"a"}, RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err := m.spawn(t.Context(), src, birthOf(ForkSpec{Tag: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	src.Release()
	b.close()
	defer func() {
		if recover() == nil {
			t.Error("a snapshot that nobody has any more can be taken again")
		}
	}()
	src.Retain()
}

// When a snapshot is not needed any more, those are told who have been sent it, which may take
// time: nothing that others want is held meanwhile.
func TestSnapshotsAreLetGoWithoutLocks(t *testing.T) {
	m := openBare(t, t.TempDir())
	for what, drop := range map[string]func(tag string){
		"removed": func(tag string) {
			if _, err := m.RemoveSnapshots([]string{tag}, RemoveOptions{}); err != nil {
				t.Error(err)
			}
		},
		"damaged": func(tag string) {
			f, err := os.OpenFile(filepath.Join(m.store.Dir(tag), "state.bin"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.WriteString("nonsense")
			f.Close()
			wantCode(t, tag, m.Verify(t.Context(), tag, nil), NotBootable, "")
		},
	} {
		bare(t, m, what, "")
		src, err := m.source(what)
		if err != nil {
			t.Fatal(err)
		}
		released := false
		src.OnRelease(func() {
			released = true
			if !m.mu.TryLock() {
				t.Errorf("%s: the manager is held", what)
				return
			}
			m.mu.Unlock()
		})
		src.Release()
		if drop(what); !released {
			t.Errorf("%s: it is still there", what)
		}
	}
}
