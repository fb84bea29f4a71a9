package jail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// Self is the path of this program, wherever its file lies by now and whatever users may
// enter the directories above it.
const Self = "/proc/self/exe"

// Jailer starts processes in jails. It is safe for concurrent use.
type Jailer struct {
	offer offer   // immutable
	group Group   // immutable; no directories: there is none
	found Finding // about the group; immutable
	users *users
}

// New finds out what the host offers and makes a cgroup for those of processes. If this
// process is alone in a cgroup that has been given to it, it moves to a child of that, so
// that other children can have limits.
func New(cfg Config) (*Jailer, error) {
	if !validName.MatchString(cfg.Group) {
		return nil, fmt.Errorf("jail: %q is no name for a group: want %s", cfg.Group, validName)
	}
	ids, err := newUsers(cfg.FirstUser, cfg.Users)
	if err != nil {
		return nil, fmt.Errorf("jail: %w", err)
	}
	j := &Jailer{users: ids, offer: look(ids.first)}
	if j.group, j.found = openGroup(cfg); cfg.Look {
		j.group = Group{}
	}
	return j, nil
}

// Offers reports what the host offers of the walls that this process builds around
// others. What they find when they build theirs is in the report of Enter.
func (j *Jailer) Offers() Report { return append(slices.Clone(j.offer.walls), j.found) }

// Close removes the group, unless processes are left in it.
func (j *Jailer) Close() { _ = j.group.rmdir() }

// Process is what there is to know of a jailed process by whoever is to clean up after
// it. It can be stored.
type Process struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// User is the id that no other process has; 0: it has that of who started it.
	User uint32 `json:"user,omitempty"`
	// Group is its cgroup.
	Group Group `json:"group"`

	mu    sync.Mutex
	users *users // that User is held of; nil: of another Jailer's, or none; guarded by mu
	gone  bool   // it has ended and was cleaned up after; guarded by mu
}

// planVariable is the environment variable by which Start tells Enter what to do.
const planVariable = "FORKD_JAIL_PLAN"

// plan is what Enter has to know.
type plan struct {
	Descriptors int    // how many were passed, from 0 on
	User        uint32 // to become; 0: none
	Walls       Report // that stand around it
	Files       uint64
	Threads     uint64 // 0: not to be limited
	FileBytes   uint64
	Require     []Wall
	Without     []Wall
}

// Start starts a process around which those walls stand that are built from outside. It
// gets cmd's standard streams and ExtraFiles, and no other descriptors; and cmd.Env, which
// is not this process's environment if it is nil: there may be secrets in that. It is this
// program, and has to call Enter. cmd.Path must be Self, and cmd.SysProcAttr nil.
//
// An error that wraps ErrRequired tells that the host does not offer what spec requires.
func (j *Jailer) Start(cmd *exec.Cmd, spec Spec) (*Process, error) {
	if err := spec.validate(); err != nil {
		return nil, err
	}
	if cmd.Path != Self || cmd.SysProcAttr != nil {
		return nil, fmt.Errorf("jail: starting %s: path must be %s, and attributes none", cmd.Path, Self)
	}
	p, err := j.start(cmd, spec)
	if err != nil {
		return nil, fmt.Errorf("jail: starting %s: %w", spec.Name, err)
	}
	return p, nil
}

func (j *Jailer) start(cmd *exec.Cmd, spec Spec) (_ *Process, err error) {
	p := &Process{Name: spec.Name}
	defer func() {
		if err != nil {
			p.discard()
		}
	}()
	namespaces, walls := j.choose(spec)
	// Walls that are built from inside are not there yet, and are not missed yet.
	early := slices.DeleteFunc(slices.Clone(spec.Require), func(w Wall) bool { return !isOuter(w) })
	if err := walls.require(early); err != nil {
		return nil, err
	}
	if walls.Find(OwnUser).State == Stands {
		if p.User, err = j.users.take(); err != nil {
			return nil, err
		}
		p.users = j.users
	}
	cmd.SysProcAttr = attributes(namespaces, p.User)
	if err := tell(cmd, spec, p.User, walls); err != nil {
		return nil, err
	}
	if walls.Find(Cgroup).State == Missing || len(j.group.Dirs) == 0 {
		if err := cmd.Start(); err != nil {
			return nil, err
		}
	} else if err := j.startLimited(cmd, spec, p); err != nil {
		return nil, err
	}
	p.PID = cmd.Process.Pid
	return p, nil
}

// isOuter tells walls that are built from outside.
func isOuter(w Wall) bool { return slices.Index(Walls, w) <= slices.Index(Walls, Cgroup) }

// choose returns what is to be built of what is offered.
func (j *Jailer) choose(spec Spec) (namespaces uintptr, walls Report) {
	walls, namespaces = j.Offers(), j.offer.namespaces
	for _, w := range spec.without {
		if !isOuter(w) {
			continue
		}
		walls.set(Finding{Wall: w, State: Missing, Detail: leftOut})
		for _, n := range namespaceFlags {
			if n.wall == w {
				namespaces &^= n.flag
			}
		}
	}
	return namespaces, walls
}

const leftOut = "left out"

// tell leaves the process a plan.
func tell(cmd *exec.Cmd, spec Spec, user uint32, walls Report) error {
	what := plan{
		Descriptors: 3 + len(cmd.ExtraFiles), Walls: walls,
		Files: or(spec.Files, defaultFiles), FileBytes: spec.FileBytes,
		Require: append(slices.Clone(Always), spec.Require...), Without: spec.without,
	}
	if spec.lax {
		what.Require = spec.Require
	}
	if user != 0 {
		// Threads are counted by user, so a limit is for a user that has no others.
		what.Threads = or(spec.Threads, defaultThreads)
		if cmd.SysProcAttr.Credential == nil {
			what.User = user
		}
	}
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	cmd.Env = append(slices.Clone(cmd.Env), planVariable+"="+string(text))
	return nil
}

func or(n, instead uint64) uint64 {
	if n == 0 {
		return instead
	}
	return n
}

// startLimited starts the process in a cgroup of its own.
func (j *Jailer) startLimited(cmd *exec.Cmd, spec Spec, p *Process) error {
	g := j.group.child(spec.Name)
	for _, dir := range g.each() {
		if _, err := os.Stat(dir); err == nil {
			return fmt.Errorf("its cgroup %s is there already", dir)
		}
	}
	p.Group = g
	if err := g.make(); err != nil {
		return fmt.Errorf("making a cgroup: %w", err)
	}
	if err := errors.Join(g.limit(spec.Limits), g.confine(or(spec.Threads, defaultThreads))); err != nil {
		return err
	}
	if g.Version == 2 {
		dir, err := g.open(cmd.SysProcAttr)
		if err != nil {
			return err
		}
		defer dir.Close()
		return cmd.Start()
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := g.add(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("putting it into its cgroup: %w", err)
	}
	return nil
}

// open has a process be started in the cgroup, which is of version 2.
func (g Group) open(a *syscall.SysProcAttr) (*os.File, error) {
	dir, err := os.Open(g.Dirs[wanted[0]])
	if err != nil {
		return nil, err
	}
	a.UseCgroupFD, a.CgroupFD = true, int(dir.Fd())
	return dir, nil
}

// Adopt takes a process over that another Jailer has started. It may have ended.
func (j *Jailer) Adopt(p *Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.User != 0 && !p.gone {
		p.users = j.users
		j.users.hold(p.User)
	}
}

// Usage tells what the process has used, as far as it has a cgroup.
func (p *Process) Usage() (Usage, error) { return p.Group.usage() }

// Limit changes the limits of its cgroup, if it has one.
func (p *Process) Limit(l Limits) error {
	if err := l.validate(); err != nil {
		return fmt.Errorf("jail: limits of %s: %w", p.Name, err)
	}
	return p.Group.limit(l)
}

// Remove cleans up after a process that has ended: it removes the cgroup, after ending
// whatever is still in it.
func (p *Process) Remove(ctx context.Context) error {
	err := p.Group.remove(ctx)
	p.release()
	return err
}

// discard is Remove for a process that was not started.
func (p *Process) discard() {
	_ = p.Group.rmdir()
	p.release()
}

func (p *Process) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users != nil {
		p.users.give(p.User)
	}
	p.users, p.gone = nil, true
}

// Sweep removes the cgroups of processes that nobody knows, and ends what is in them. It
// returns their names. It must not be called while processes are being started.
func (j *Jailer) Sweep(ctx context.Context, known func(name string) bool) (removed []string, err error) {
	names := make(map[string]bool)
	for _, dir := range j.group.each() {
		entries, e := os.ReadDir(dir)
		err = errors.Join(err, e)
		for _, entry := range entries {
			if entry.IsDir() && !known(entry.Name()) {
				names[entry.Name()] = true
			}
		}
	}
	for name := range names {
		if e := j.group.child(filepath.Base(name)).remove(ctx); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, name)
	}
	slices.Sort(removed)
	return removed, err
}
