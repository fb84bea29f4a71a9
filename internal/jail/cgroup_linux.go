package jail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is one cgroup, by the directories in which its controllers' files are. In
// version 2 they are all the same.
type Group struct {
	Version int               `json:"version"`
	Dirs    map[string]string `json:"dirs"` // by controller
}

// wanted are the controllers that limits need. The first is the one without which it
// is not worth it.
var wanted = []string{"memory", "cpu", "pids"}

// accounting is the controller of version 1 that tells how much CPU time was used.
const accounting = "cpuacct"

// child returns the cgroup of that name in this one.
func (g Group) child(name string) Group {
	dirs := make(map[string]string)
	for c, dir := range g.Dirs {
		dirs[c] = filepath.Join(dir, name)
	}
	return Group{g.Version, dirs}
}

// each returns the directories, each once.
func (g Group) each() []string {
	return slices.Compact(slices.Sorted(maps.Values(g.Dirs)))
}

func (g Group) make() error {
	for _, dir := range g.each() {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// add has a process in the cgroup.
func (g Group) add(pid int) error {
	for _, dir := range g.each() {
		if err := put(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// put writes to a file of the kernel's, which must exist.
func put(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// set writes to a file of a controller. There is none of a controller that the host
// has not got; that is a gap in the report.
func (g Group) set(controller, file, text string) error {
	dir, ok := g.Dirs[controller]
	if !ok {
		return nil
	}
	if err := put(filepath.Join(dir, file), text); err != nil {
		return fmt.Errorf("limiting %s: %w", controller, err)
	}
	return nil
}

// cpuPeriod is the time in which a cap on CPU time holds, in microseconds.
const cpuPeriod = 100_000

// limit sets limits, and takes back those that are zero.
func (g Group) limit(l Limits) error {
	if g.Version == 1 {
		return g.limit1(l)
	}
	memory, quota, weight := "max", "max", 100
	if l.MemoryBytes > 0 {
		memory = strconv.FormatInt(l.MemoryBytes, 10)
	}
	if l.CPUMilli > 0 {
		quota = strconv.Itoa(l.CPUMilli * (cpuPeriod / 1000))
	}
	if l.CPUWeight > 0 {
		weight = l.CPUWeight
	}
	return errors.Join(
		g.set("memory", "memory.max", memory),
		g.set("cpu", "cpu.weight", strconv.Itoa(weight)),
		g.set("cpu", "cpu.max", fmt.Sprintf("%s %d", quota, cpuPeriod)))
}

// limit1 is limit for version 1.
func (g Group) limit1(l Limits) error {
	memory, quota, shares := int64(-1), -1, 1024
	if l.MemoryBytes > 0 {
		memory = l.MemoryBytes
	}
	if l.CPUMilli > 0 {
		quota = l.CPUMilli * (cpuPeriod / 1000)
	}
	if l.CPUWeight > 0 {
		shares = max(2, l.CPUWeight*1024/100)
	}
	return errors.Join(
		g.set("memory", "memory.limit_in_bytes", strconv.FormatInt(memory, 10)),
		g.set("cpu", "cpu.shares", strconv.Itoa(shares)),
		g.set("cpu", "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)),
		g.set("cpu", "cpu.cfs_quota_us", strconv.Itoa(quota)))
}

// confine bounds the number of threads, and has the cgroup die as a whole if the kernel
// must end something in it for want of memory.
func (g Group) confine(threads uint64) error {
	err := g.set("pids", "pids.max", strconv.FormatUint(threads, 10))
	if g.Version == 2 {
		err = errors.Join(err, g.set("memory", "memory.oom.group", "1"))
	}
	return err
}

// usage reads what has been used. What the host does not count is zero.
func (g Group) usage() (u Usage, err error) {
	dir, ok := g.Dirs["memory"]
	if !ok {
		return u, nil
	}
	if _, err := os.Stat(dir); err != nil {
		return u, err
	}
	if g.Version == 1 {
		u.MemoryBytes = number(dir, "memory.usage_in_bytes")
		if number(dir, "memory.failcnt") > 0 {
			u.OOMKills = field(dir, "memory.oom_control", "oom_kill")
		}
		u.CPUMicros = number(g.Dirs[accounting], "cpuacct.usage") / 1000
	} else {
		u.MemoryBytes = number(dir, "memory.current")
		if field(dir, "memory.events", "oom") > 0 { // otherwise it was the host that had no more
			u.OOMKills = field(dir, "memory.events", "oom_kill")
		}
		u.CPUMicros = field(dir, "cpu.stat", "usage_usec")
	}
	u.Threads = number(g.Dirs["pids"], "pids.current")
	return u, nil
}

// number reads a file that is one number.
func number(dir, file string) int64 {
	b, _ := os.ReadFile(filepath.Join(dir, file))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// field reads a number from a file with a name and a number in each line.
func field(dir, file, name string) int64 {
	b, _ := os.ReadFile(filepath.Join(dir, file))
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// kill ends all processes that are in the cgroup.
func (g Group) kill() {
	for _, dir := range g.each() {
		if put(filepath.Join(dir, "cgroup.kill"), "1") == nil {
			continue // version 2, since Linux 5.14
		}
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for line := range strings.Lines(string(b)) {
			// 0 is a process that this one does not see, and would be this one.
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// remove ends what is in the cgroup, and removes it.
func (g Group) remove(ctx context.Context) error {
	g.kill()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := g.rmdir()
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("removing a cgroup: %w", err)
		}
		select { // what was killed is still ending
		case <-ctx.Done():
			return fmt.Errorf("removing a cgroup: %w: %w", context.Cause(ctx), err)
		case <-time.After(wait):
			g.kill()
		}
	}
}

// rmdir removes the cgroup, or what there is left of it.
func (g Group) rmdir() (err error) {
	for _, dir := range g.each() {
		if e := unix.Rmdir(dir); e != nil && e != unix.ENOENT {
			err = &os.PathError{Op: "rmdir", Path: dir, Err: e}
		}
	}
	return err
}
