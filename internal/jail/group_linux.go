package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leaf is where this process goes if it is in the way: in version 2, a cgroup whose
// children have limits may have no processes itself. Or somebody has put it there, as
// systemd's DelegateSubgroup does.
const leaf = "daemon"

// delegated returns the cgroup that this process has been given, if own is the one that
// it is in.
func delegated(own string) string {
	if filepath.Base(own) == leaf {
		return filepath.Dir(own)
	}
	return own
}

// openGroup makes the cgroup in which those of processes will lie, or says what is in the
// way.
func openGroup(cfg Config) (g Group, f Finding) {
	f = Finding{Wall: Cgroup, State: Missing, Fix: "delegate a cgroup to the daemon, see docs/jail.md"}
	name := "forkd." + cfg.Group
	if cfg.CgroupParent != "" {
		g, err := openGroup2(cfg.CgroupParent, name, cfg.Look)
		if err != nil {
			f.Detail = err.Error()
			return Group{}, f
		}
		return g, g.finding()
	}
	list, err := hierarchies()
	if err != nil {
		f.Detail = err.Error()
		return g, f
	}
	var failed []error
	for _, h := range list {
		if h.version != 2 {
			continue
		}
		g, err := openGroup2(delegated(h.own), name, cfg.Look)
		if err == nil {
			return g, g.finding()
		}
		failed = append(failed, err)
	}
	if g, err = openGroup1(list, name, cfg.Look); err == nil {
		return g, g.finding()
	}
	f.Detail = errors.Join(append(failed, err)...).Error()
	f.Detail = strings.ReplaceAll(f.Detail, "\n", "; ")
	return Group{}, f
}

// finding tells which controllers there are.
func (g Group) finding() Finding {
	f := Finding{Cgroup, Stands, fmt.Sprintf("version %d, in %s", g.Version, filepath.Dir(g.Dirs["memory"])), ""}
	var lacking []string
	for _, c := range wanted {
		if _, ok := g.Dirs[c]; !ok {
			lacking = append(lacking, c)
		}
	}
	if lacking != nil {
		f.State = Partial
		f.Detail += ", without " + strings.Join(lacking, ", ")
		f.Fix = "delegate these controllers too, see docs/jail.md"
	}
	return f
}

// openGroup2 makes a group under a directory of version 2, or just looks whether it might.
func openGroup2(parent, name string, look bool) (g Group, err error) {
	b, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return g, err
	}
	g = Group{Version: 2, Dirs: make(map[string]string)}
	for _, c := range wanted {
		if slices.Contains(strings.Fields(string(b)), c) {
			g.Dirs[c] = filepath.Join(parent, name)
		}
	}
	if g.Dirs[wanted[0]] == "" {
		return Group{}, fmt.Errorf("%s has no controller for %s", parent, wanted[0])
	}
	if err := unix.Access(parent, unix.W_OK); err != nil {
		return Group{}, fmt.Errorf("%s cannot be written: %w", parent, err)
	}
	if look {
		return g, nil
	}
	if err := g.found(parent); err != nil {
		return Group{}, err
	}
	return g, nil
}

// found makes a group of version 2 in which processes with limits can be.
func (g Group) found(parent string) error {
	// In the order of wanted: memory refuses to be shared out where there are processes, and
	// what does not refuse would make it impossible to set that right.
	controllers := slices.DeleteFunc(slices.Clone(wanted), func(c string) bool { return g.Dirs[c] == "" })
	err := enable(parent, controllers)
	if errors.Is(err, unix.EBUSY) {
		if err = stepAside(parent); err == nil {
			err = enable(parent, controllers)
		}
	}
	if err != nil {
		return err
	}
	if err := g.make(); err != nil {
		return err
	}
	if err := enable(g.Dirs[wanted[0]], controllers); err != nil {
		return err
	}
	return tryGroup2(g)
}

// enable has children of a cgroup have controllers.
func enable(dir string, controllers []string) error {
	for _, c := range controllers {
		if err := put(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return err
		}
	}
	return nil
}

// stepAside moves this process out of a cgroup that has no others.
func stepAside(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	if pids := strings.Fields(string(b)); len(pids) != 1 || pids[0] != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%s is not the daemon's own: it has %d processes", dir, len(pids))
	}
	aside := Group{Version: 2, Dirs: map[string]string{"": filepath.Join(dir, leaf)}}
	if err := aside.make(); err != nil {
		return err
	}
	return aside.add(os.Getpid())
}

// tryGroup2 starts a process in the group, as far as it goes.
func tryGroup2(g Group) error {
	trial := g.child("trial-" + strconv.Itoa(os.Getpid()))
	if err := trial.make(); err != nil {
		return err
	}
	defer trial.rmdir()
	a := attributes(0, 0)
	dir, err := trial.open(a)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := attempt(a); err != nil {
		return fmt.Errorf("no process starts in %s: %w", trial.Dirs[wanted[0]], err)
	}
	return nil
}

// openGroup1 makes a group in hierarchies of version 1, or just looks whether it might.
func openGroup1(list []hierarchy, name string, look bool) (g Group, err error) {
	g = Group{Version: 1, Dirs: make(map[string]string)}
	for _, h := range list {
		for _, c := range h.controllers {
			if c != accounting && !slices.Contains(wanted, c) {
				continue
			}
			if err := unix.Access(h.own, unix.W_OK); err != nil {
				return Group{}, fmt.Errorf("%s cannot be written: %w", h.own, err)
			}
			g.Dirs[c] = filepath.Join(h.own, name)
		}
	}
	if g.Dirs[wanted[0]] == "" {
		return Group{}, errors.New("no cgroups of version 1 for memory")
	}
	if look {
		return g, nil
	}
	if err := g.make(); err != nil {
		g.rmdir()
		return Group{}, err
	}
	return g, nil
}
