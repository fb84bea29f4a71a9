package snapshot

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestISAs(t *testing.T) {
	if isas, err := ISAs(t.TempDir()); err != nil || len(isas) != 0 {
		t.Errorf("a home without snapshots has %v, %v", isas, err)
	}
	b := newQuickBench(t)
	b.mustWrite("one", "", 1)
	b.mustWrite("two", "one", 2)
	isa := b.store.Inspect("one").Manifest.ISA
	// What is no snapshot, or a damaged one, does not count.
	for _, dir := range []string{"broken", ".tmp-x"} {
		if err := os.MkdirAll(filepath.Join(b.home, "snapshots", dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if isas, err := ISAs(b.home); err != nil || !maps.Equal(isas, map[string]int{isa: 2}) {
		t.Errorf("two snapshots of %s: %v, %v", isa, isas, err)
	}
}
