package host

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"testing/fstest"
)

const gib = 1 << 30

// files makes a root file system of some files.
func files(all map[string]string) *Host {
	root := fstest.MapFS{}
	for name, text := range all {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return &Host{root}
}

const meminfo = "MemTotal:       16777216 kB\nMemFree:        1048576 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"

func TestMemory(t *testing.T) {
	const (
		v2    = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
		v1    = "30 23 0:20 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
		mixed = v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	)
	for name, c := range map[string]struct {
		files map[string]string
		want  Memory
	}{
		"no groups": {nil, Memory{16 * gib, 8 * gib}},
		"version 2, no limit": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2, "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5\n",
		}, Memory{16 * gib, 8 * gib}},
		"version 2, a limit above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "1073741824\n",
			"sys/fs/cgroup/a/memory.max": "4294967296\n", "sys/fs/cgroup/a/memory.current": "3221225472\n",
			"sys/fs/cgroup/a/memory.stat": "anon 2147483648\nfile 1073741824\ninactive_file 536870912\nactive_file 536870912\n",
		}, Memory{4 * gib, 2 * gib}},
		"version 2 in a container": {map[string]string{
			"proc/self/cgroup": "0::/machine/x/app\n", "proc/self/mountinfo": "31 23 0:28 /machine/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/app/memory.max": "2147483648\n", "sys/fs/cgroup/app/memory.current": "1073741824\n",
			"sys/fs/cgroup/memory.max": "3221225472\n", "sys/fs/cgroup/memory.current": "3221225471\n",
		}, Memory{2 * gib, 1}},
		"a group that is not to be seen": {map[string]string{
			"proc/self/cgroup": "0::/../y\n", "proc/self/mountinfo": "31 23 0:28 /machine/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/memory.max": "2147483648\n", "sys/fs/cgroup/memory.current": "1073741824\n",
		}, Memory{2 * gib, gib}},
		"version 1": {map[string]string{
			"proc/self/cgroup": "9:name=systemd:/\n4:memory:/a\n0::/\n", "proc/self/mountinfo": mixed,
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2147483648\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "2147483648\n",
			"sys/fs/cgroup/memory/a/memory.stat":         "cache 9\ntotal_inactive_file 536870912\ntotal_active_file 536870912\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
		}, Memory{2 * gib, gib}},
		"more used than allowed": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2, "sys/fs/cgroup/memory.max": "5\n", "sys/fs/cgroup/memory.current": "6\n",
		}, Memory{5, 0}},
		"nonsense": {map[string]string{
			"proc/self/cgroup": "x\n0:\n::\n0::/a\n", "proc/self/mountinfo": "\n- \n1 2 3 - cgroup2\n" + v2,
			"sys/fs/cgroup/a/memory.max": "-\n", "sys/fs/cgroup/memory.max": "99999999999999999999\n",
		}, Memory{16 * gib, 8 * gib}},
	} {
		all := map[string]string{"proc/meminfo": meminfo}
		for file, text := range c.files {
			all[file] = text
		}
		if got, err := files(all).Memory(); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	for name, all := range map[string]map[string]string{
		"nothing": nil, "an old kernel": {"proc/meminfo": "MemTotal: 5 kB\n"}, "overflow": {"proc/meminfo": "MemTotal: 9223372036854775807 kB\nMemAvailable: 1 kB\n"},
	} {
		if got, err := files(all).Memory(); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Kernels before 6.2 do not tell how many descriptors there are, and list them.
func TestFilesOpen(t *testing.T) {
	const dir = "proc/self/fd"
	for name, c := range map[string]struct {
		root fstest.MapFS
		want int
	}{
		"told":   {fstest.MapFS{dir: {Mode: fs.ModeDir, Data: make([]byte, 70)}, dir + "/0": {}}, 70},
		"listed": {fstest.MapFS{dir + "/0": {}, dir + "/1": {}, dir + "/7": {}}, 3},
	} {
		if got, err := (&Host{c.root}).Files(); err != nil || got.Open != c.want {
			t.Errorf("%s: %+v, %v, want %d open", name, got, err, c.want)
		}
	}
	if got, err := files(nil).Files(); !errors.Is(err, ErrUnknown) {
		t.Errorf("without /proc: %+v, %v", got, err)
	}
}

// This host tells something that can be true.
func TestThisHost(t *testing.T) {
	h := New()
	m, err := h.Memory()
	if errors.Is(err, ErrUnknown) {
		t.Skip(err)
	}
	if err != nil || m.Total < 1<<20 || m.Available < 0 || m.Available > m.Total {
		t.Errorf("memory: %+v, %v", m, err)
	}
	before, err := h.Files()
	if err != nil || before.Open < 3 || before.Limit < before.Open {
		t.Errorf("files: %+v, %v", before, err)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if after, err := h.Files(); err != nil || after.Open != before.Open+1 {
		t.Errorf("files: %+v after one more, %v", after, err)
	}
	if free, err := h.Disk(t.TempDir()); err != nil || free < 1 {
		t.Errorf("disk: %d, %v", free, err)
	}
	if _, err := h.Disk("/nowhere/at/all"); err == nil {
		t.Error("a path that does not exist has free space")
	}
}

func BenchmarkMemory(b *testing.B) {
	h := New()
	for b.Loop() {
		if _, err := h.Memory(); err != nil {
			b.Skip(err)
		}
	}
}

// BenchmarkFiles counts the descriptors of a process that has a hundred open.
func BenchmarkFiles(b *testing.B) {
	h := New()
	for range 100 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
	}
	for b.Loop() {
		if _, err := h.Files(); err != nil {
			b.Skip(err)
		}
	}
}

// FuzzMemory reads whatever a kernel may write.
func FuzzMemory(f *testing.F) {
	f.Add(meminfo, "0::/a\n4:memory:/b\n", "31 23 0:28 / /c rw - cgroup2 c rw\n35 31 0:32 / /c rw - cgroup c rw,memory\n", "1\n", "anon 5\n")
	f.Fuzz(func(t *testing.T, info, own, mounts, limit, stat string) {
		all := map[string]string{"proc/meminfo": info, "proc/self/cgroup": own, "proc/self/mountinfo": mounts}
		for _, dir := range []string{"c/a/", "c/b/", "c/"} {
			for _, name := range []string{"memory.max", "memory.current", "memory.limit_in_bytes", "memory.usage_in_bytes"} {
				all[dir+name] = limit
			}
			all[dir+"memory.stat"] = stat
		}
		if m, err := files(all).Memory(); err == nil && (m.Available < 0 || m.Total < 0) {
			t.Errorf("%+v", m)
		}
	})
}
