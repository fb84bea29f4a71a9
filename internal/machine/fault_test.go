package machine

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
)

// TestDeviceThatCannotReadAPage: a machine one of whose devices was stopped in the middle of
// its work by a page that cannot be read has ended, also if it was to be frozen.
func TestDeviceThatCannotReadAPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(path, make([]byte, page.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := page.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Release()
	ram, disk := page.NewStack(board.MinRAMBytes/page.Size), page.NewStack(16)
	defer ram.Release()
	defer disk.Release()
	arena := page.NewArena()
	m, err := New(Config{
		Engine: soft.New(0), VCPUs: 1, Root: disk, Entropy: rand.Reader, Console: io.Discard,
		Memory: page.NewOverlay(ram, arena, 0), Scratch: page.NewOverlay(disk, arena, 0),
		Boot: &Boot{Kernel: machinetest.Kernel(machinetest.Count)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	m.vm.Post(func() {
		if p, _ := raw.Get(0); page.IsZero(p) {
			t.Error("the page is there")
		}
	})
	if _, err := m.Branch(); !errors.Is(err, page.ErrCorrupt) {
		t.Errorf("branched: %v", err)
	}
	if err := m.Start(); !errors.Is(err, ErrEnded) || !errors.Is(m.Ending().Err, page.ErrCorrupt) {
		t.Errorf("started: %v; ended with %v", err, m.Ending())
	}
}
