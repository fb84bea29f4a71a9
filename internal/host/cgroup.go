package host

import (
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// hierarchy is a tree of control groups of which one version says how much memory
// they may use.
type hierarchy struct {
	kind       string // of its file system
	controller string // that it has to have; empty: that of version 2
	limit      string // file with the limit
	usage      string // file with what is used
	caches     []string
}

// What is cached of files is given up when memory is needed, so it counts as
// available.
var hierarchies = []hierarchy{
	{"cgroup2", "", "memory.max", "memory.current", []string{"inactive_file", "active_file"}},
	{"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}},
}

// groups returns what each control group that this process is in leaves, those
// above it included.
func (h *Host) groups() (all []Memory) {
	own, err := fs.ReadFile(h.root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(h.root, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for _, k := range hierarchies {
		group, ok := k.group(string(own))
		if !ok {
			continue
		}
		for line := range strings.Lines(string(mounts)) {
			if top, base, ok := k.mount(line); ok {
				all = append(all, h.chain(k, top, base, group)...)
				break
			}
		}
	}
	return all
}

// group finds the group of this process in /proc/self/cgroup, whose lines are
// number:controllers:path.
func (k hierarchy) group(own string) (string, bool) {
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && has(parts[1], k.controller) {
			return parts[2], true
		}
	}
	return "", false
}

func has(list, name string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item == name {
			return true
		}
	}
	return false
}

// mount reads a line of /proc/self/mountinfo: if it is of the hierarchy, base is
// the group that is to be seen at the directory top.
func (k hierarchy) mount(line string) (top, base string, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	f, g := strings.Fields(before), strings.Fields(after)
	if !found || len(f) < 5 || len(g) < 3 || g[0] != k.kind || k.controller != "" && !has(g[2], k.controller) {
		return "", "", false
	}
	return unescape(f[4]), unescape(f[3]), true
}

// unescape undoes what the kernel does to blanks and backslashes in paths.
func unescape(s string) string { return escapes.Replace(s) }

var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// chain reads a group and all those above it up to what is mounted. A group that
// is not to be seen there is that at the top, as in a container.
func (h *Host) chain(k hierarchy, top, base, group string) (all []Memory) {
	rest, below := strings.CutPrefix(group, strings.TrimSuffix(base, "/"))
	if !below {
		rest = ""
	}
	top = strings.TrimPrefix(top, "/")
	for at := path.Clean("/" + rest); ; at = path.Dir(at) {
		if m, ok := h.limited(k, path.Join(top, at)); ok {
			all = append(all, m)
		}
		if at == "/" {
			return all
		}
	}
}

// limited reads one group; ok is whether it is limited.
func (h *Host) limited(k hierarchy, dir string) (m Memory, ok bool) {
	limit, err := h.number(path.Join(dir, k.limit))
	if err != nil || limit >= math.MaxInt64>>10 {
		return m, false // "max", or the huge number that stands for it
	}
	used, err := h.number(path.Join(dir, k.usage))
	if err != nil {
		return m, false
	}
	if text, err := fs.ReadFile(h.root, path.Join(dir, "memory.stat")); err == nil {
		stat := fields(string(text), " ")
		for _, name := range k.caches {
			used -= stat[name]
		}
	}
	return Memory{Total: limit, Available: min(limit, max(0, limit-used))}, true
}

func (h *Host) number(name string) (int64, error) {
	text, err := fs.ReadFile(h.root, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
