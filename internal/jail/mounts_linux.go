package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hierarchy is one tree of cgroups, as this process sees it.
type hierarchy struct {
	version     int
	controllers []string // of version 1
	own         string   // the directory of the cgroup that this process is in
}

// hierarchies returns those that are mounted.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding cgroups: %w", err)
	}
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("finding cgroups: %w", err)
	}
	return parseHierarchies(string(mounts), string(memberships)), nil
}

// parseHierarchies reads /proc/self/mountinfo and /proc/self/cgroup (proc(5),
// cgroups(7)). Lines that it does not understand are not about cgroups.
func parseHierarchies(mounts, memberships string) (list []hierarchy) {
	for line := range strings.Lines(mounts) {
		left, right, ok := strings.Cut(line, " - ")
		at, kind := strings.Fields(left), strings.Fields(right)
		if !ok || len(at) < 5 || len(kind) < 3 {
			continue
		}
		h := hierarchy{version: 2}
		switch kind[0] {
		case "cgroup2":
		case "cgroup":
			h.version = 1
			h.controllers = strings.Split(kind[2], ",")
		default:
			continue
		}
		root, mount := unescapeMount(at[3]), unescapeMount(at[4])
		// Of a cgroup that lies outside of what is mounted nothing can be said.
		inside, ok := h.membership(memberships)
		if rel, err := filepath.Rel(root, inside); ok && err == nil && filepath.IsLocal(rel) {
			h.own = filepath.Join(mount, rel)
			list = append(list, h)
		}
	}
	return list
}

// membership returns which cgroup of the hierarchy this process is in.
func (h *hierarchy) membership(memberships string) (path string, ok bool) {
	for line := range strings.Lines(memberships) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if h.version == 2 {
			ok = fields[0] == "0" && fields[1] == ""
		} else {
			ok = fields[1] != "" && slices.ContainsFunc(strings.Split(fields[1], ","), func(c string) bool {
				return slices.Contains(h.controllers, c)
			})
		}
		if ok {
			return fields[2], true
		}
	}
	return "", false
}

// unescapeMount undoes what the kernel does to blanks in paths.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
