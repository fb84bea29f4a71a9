package pid1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// setting is a file of the kernel's and what the agent writes into it.
type setting struct {
	path, value string // the path may be a pattern
}

const hour = "3600000" // in milliseconds

// settings keep an idle guest asleep. Each of the jobs that they put off is
// periodic, finds nothing to do in a small guest, and would run in every child,
// where a wake-up costs some 25,000 instructions and a dozen pages.
var settings = []setting{
	{"/proc/sys/vm/compaction_proactiveness", "0"},       // kcompactd, twice a second
	{"/proc/sys/vm/stat_interval", "3600"},               // folding of per-CPU counters, every second
	{"/proc/sys/vm/dirty_writeback_centisecs", "360000"}, // the scratch disk is no more durable than memory
	{"/proc/sys/kernel/hung_task_timeout_secs", "0"},     // and no false alarm in a child that was frozen for a year
	{"/proc/sys/net/ipv4/neigh/default/interval_probe_time_ms", hour},
	{"/proc/sys/net/ipv6/neigh/default/interval_probe_time_ms", hour},
	{"/proc/sys/net/ipv4/neigh/default/base_reachable_time_ms", hour}, // also of the garbage collection
	{"/proc/sys/net/ipv6/neigh/default/base_reachable_time_ms", hour},
	{"/sys/block/vd*/queue/wbt_lat_usec", "0"}, // write throttling, ten times a second after each request
	// The rest is limits that are too low for large trees of sources; memory is
	// what counts.
	{"/proc/sys/fs/inotify/max_user_watches", "1048576"},
	{"/proc/sys/fs/inotify/max_user_instances", "8192"},
}

// tune applies the settings. What a kernel does not have needs no tuning.
func tune() error {
	for _, s := range settings {
		paths, err := filepath.Glob(s.path)
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := os.WriteFile(p, []byte(s.value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("tuning the kernel: %w", err)
			}
		}
	}
	return nil
}
