package launch

import "path/filepath"

// Left reports whether no daemon runs in a home, and an earlier one has left processes in
// which sandboxes may live.
func Left(home string) bool {
	records, err := filepath.Glob(filepath.Join(home, "cells", "*.json"))
	return err == nil && len(records) > 0 && !Running(home)
}

// Kept reports whether a home has sandboxes that wait for a daemon: those that are paused,
// and those that may live in what an earlier daemon has left.
func Kept(home string) bool {
	paused, err := filepath.Glob(filepath.Join(home, "sandboxes", "*.json"))
	return Left(home) || err == nil && len(paused) > 0 && !Running(home)
}
