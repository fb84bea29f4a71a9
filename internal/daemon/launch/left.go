package launch

import "path/filepath"

// Left reports whether no daemon runs in a home, and an earlier one has left processes in
// which sandboxes may live.
func Left(home string) bool {
	records, err := filepath.Glob(filepath.Join(home, "cells", "*.json"))
	return err == nil && len(records) > 0 && !Running(home)
}
