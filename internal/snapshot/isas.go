package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ISAs returns how many snapshots a home has of each instruction set, without opening
// its store. Snapshots whose manifest cannot be read are not counted.
func ISAs(home string) (map[string]int, error) {
	entries, err := os.ReadDir(filepath.Join(home, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for snapshots: %w", err)
	}
	isas := make(map[string]int)
	for _, e := range entries {
		if !ValidTag(e.Name()) {
			continue
		}
		if m, err := readManifest(filepath.Join(home, "snapshots", e.Name())); err == nil {
			isas[m.ISA]++
		}
	}
	return isas, nil
}
