package agent_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// limit refreshes the guest as another machine with limits, and returns what the kernel was told: the most processes,
// and the blocks that the disk keeps back.
func (f *fixture) limit(t *testing.T, generation uint64, limits wire.Limits) (processes string, kept uint64) {
	t.Helper()
	if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := identity(generation)
	r.Limits = limits
	if err := f.Refresh(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(f.dir, "kept-back"))
	if err != nil {
		t.Fatal(err)
	}
	if kept, err = strconv.ParseUint(string(text), 10, 64); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(filepath.Join(f.dir, "pids.max"))
	return string(b), kept
}

// A refresh sets limits, keeps those of a machine that comes back, and lifts those of a source that the machine does not have.
func TestRefreshLimits(t *testing.T) {
	const usual, disk = 4096, 64 << 20
	f := newGuest(t)
	if err := os.WriteFile(filepath.Join(f.dir, "kept-back"), []byte("4096"), 0o600); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Bfree*uint64(fs.Bsize) < 4*disk {
		t.Skip("needs 256 MiB of free disk")
	}
	if processes, kept := f.limit(t, 1, wire.Limits{}); processes != "" || kept != usual {
		t.Errorf("without limits the kernel was told %q processes and %d blocks", processes, kept)
	}
	mine := wire.Limits{Owner: "a", Processes: 30, DiskBytes: disk}
	processes, kept := f.limit(t, 2, mine)
	// Others use this disk, too.
	if left := int64(fs.Bfree) - int64(kept); processes != "30" || left > 2*disk/fs.Bsize || left < -2*disk/fs.Bsize {
		t.Errorf("%q processes, %d of %d free blocks kept back", processes, kept, fs.Bfree)
	}
	// Under the same owner nothing is touched; another begins anew.
	for _, name := range []string{"kept-back", "pids.max"} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte("5"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if processes, kept := f.limit(t, 3, mine); processes != "5" || kept != 5 {
		t.Errorf("a machine that comes back: %q processes, %d blocks", processes, kept)
	}
	mine.Owner = "b"
	if processes, kept := f.limit(t, 4, mine); processes != "5" || kept < usual {
		t.Errorf("another owner: %q processes, %d blocks", processes, kept)
	}
	if processes, kept := f.limit(t, 5, wire.Limits{Owner: "b", Processes: 40}); processes != "40" || kept != usual {
		t.Errorf("without a limit of the disk: %q processes, %d blocks", processes, kept)
	}
	if processes, kept := f.limit(t, 6, wire.Limits{}); processes != "max" || kept != usual {
		t.Errorf("a child without limits of a source with some: %q processes, %d blocks", processes, kept)
	}
}

// A limit that cannot be set is no limit, so nothing of the user's runs.
func TestRefreshFailsWithoutMeansToLimit(t *testing.T) {
	f := newGuest(t)
	if _, err := f.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := identity(1)
	r.Limits = wire.Limits{Owner: "a", DiskBytes: 1} // there is no such file
	if e := wantCode(t, f.Refresh(t.Context(), r), wire.CodeRefreshFailed); e.Field != "limits" {
		t.Errorf("failed step is %q", e.Field)
	}
	_, err := f.run(t.Context(), sh("true"))
	wantCode(t, err, wire.CodeQuiesced)
}
