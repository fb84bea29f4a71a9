package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// RemoveSnapshots deletes snapshots and returns the tags that are gone. All or
// nothing: if one of them does not exist, or is in use and opts do not say what
// to do about that, none is removed. In use is a snapshot that sandboxes run
// from or that other snapshots were made from; the InUse error names them. What
// a workspace or a paused sandbox resumes from, or was resumed from, cannot be removed at all.
func (m *Manager) RemoveSnapshots(tags []string, opts RemoveOptions) ([]string, error) {
	tags = slices.Compact(slices.Sorted(slices.Values(tags)))
	if len(tags) == 0 {
		return nil, fail(InvalidArgument, "", "no snapshot to remove was named")
	}
	for _, tag := range tags {
		if !snapshot.ValidTag(tag) {
			return nil, badTag(tag)
		}
	}
	made, err := m.made(tags)
	if err != nil {
		return nil, err
	}
	defer made()
	all, free, err := m.claim(tags, opts.Cascade)
	if err != nil {
		return nil, err
	}
	if err := func() error {
		defer free()
		more := slices.DeleteFunc(slices.Clone(all), func(tag string) bool { return slices.Contains(tags, tag) })
		made, err := m.made(more)
		if err != nil {
			return err
		}
		defer made()
		return m.removeClaimed(all, opts)
	}(); err != nil {
		return nil, err
	}
	m.pruneImages()
	return all, nil
}

// made refuses snapshots that are being made, and has nobody make one of the tags until
// free is called.
func (m *Manager) made(tags []string) (free func(), err error) {
	var taken []string
	free = func() {
		for _, tag := range taken {
			m.building.release(tag)
		}
	}
	for _, tag := range tags {
		if !m.building.try(tag) {
			free()
			return nil, fail(InUse, "wait until it is ready", "snapshot %q is being made", tag)
		}
		taken = append(taken, tag)
	}
	return free, nil
}

// claim takes the locks of tags, and of what was made from them too if the
// cascade is wanted, and returns them all, in order.
func (m *Manager) claim(tags []string, cascade bool) (all []string, free func(), err error) {
	for {
		all, free = tags, m.tags.own(tags)
		if !cascade {
			return all, free, nil
		}
		if all, err = m.descendants(tags); err != nil {
			free()
			return nil, nil, err
		}
		if len(all) == len(tags) {
			return all, free, nil
		}
		free()
		tags = all // and look again with their locks held
	}
}

// descendants returns tags and whatever was made from them, in order.
func (m *Manager) descendants(tags []string) ([]string, error) {
	all := make(map[string]bool)
	for queue := slices.Clone(tags); len(queue) > 0; queue = queue[1:] {
		if all[queue[0]] {
			continue
		}
		all[queue[0]] = true
		children, err := m.childSnapshots(queue[0])
		if err != nil {
			return nil, err
		}
		queue = append(queue, children...)
	}
	sorted := make([]string, 0, len(all))
	for tag := range all {
		sorted = append(sorted, tag)
	}
	slices.Sort(sorted)
	return sorted, nil
}

// childSnapshots returns the tags that were made from a snapshot. One that
// cannot be read, or is not there, has none.
func (m *Manager) childSnapshots(tag string) ([]string, error) {
	chain, err := m.store.Chain(tag)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, snapshot.ErrNotBootable) {
		return nil, wrap(err, "looking for what was made from %q", tag)
	}
	return chain.Dependents, nil
}

// removeClaimed removes snapshots whose locks are held.
func (m *Manager) removeClaimed(tags []string, opts RemoveOptions) error {
	var stored []string
	for _, tag := range tags {
		switch {
		case m.store.Exists(tag):
			stored = append(stored, tag)
		case !m.hasFailed(tag):
			return fail(NotFound, m.tagHint(), "there is no snapshot %q", tag)
		}
	}
	if err := m.removable(stored, opts); err != nil {
		return err
	}
	for _, tag := range stored {
		for _, id := range m.dependents(tag) {
			if b, err := m.box(id); err == nil {
				m.drop(b, reasonRemoved)
			}
		}
	}
	for _, tag := range tags {
		m.forgetFailure(tag)
	}
	if len(stored) == 0 {
		return nil
	}
	err := m.store.Remove(stored...)
	m.cool(stored...) // also what is gone, and not for good
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrap(err, "removing %s", strings.Join(stored, ", "))
	}
	return nil
}

// removable refuses to remove what is in use.
func (m *Manager) removable(tags []string, opts RemoveOptions) error {
	for _, tag := range tags {
		if users, remedy := summary(m.keepersOf(tag)); users != "" {
			return fail(InUse, remedy+" comes first", "snapshot %q is in use by %s", tag, users)
		}
		if opts.Force || opts.Cascade {
			continue
		}
		children, err := m.childSnapshots(tag)
		if err != nil {
			return err
		}
		children = slices.DeleteFunc(children, func(child string) bool { return slices.Contains(tags, child) })
		if err := m.usedBy(tag, m.dependents(tag), children); err != nil {
			return err
		}
	}
	return nil
}

// usedBy refuses to remove a snapshot that sandboxes run from or snapshots stand
// on, and says what would work.
func (m *Manager) usedBy(tag string, boxes, children []string) error {
	var users []string
	if len(boxes) > 0 {
		users = append(users, counted(len(boxes), "sandbox", "es")+": "+shorten(boxes))
	}
	if len(children) > 0 {
		users = append(users, counted(len(children), "snapshot", "s")+": "+shorten(children))
	}
	if len(users) == 0 {
		return nil
	}
	hint := "remove those as well with --cascade, or only this one and its sandboxes with --force"
	above, err := m.descendants(children)
	if err != nil {
		return err
	}
	if keep, remedy := summary(m.keepersOf(above...)); keep != "" {
		users = append(users, keep)
		hint = "remove only this one and its sandboxes with --force; --cascade works after " + remedy
	}
	return fail(InUse, hint, "snapshot %q is in use by %s", tag, strings.Join(users, " and by "))
}

// summary names keepers, and the commands that give them up; nothing for none.
func summary(list []keeper) (users, remedy string) {
	named := make(map[*keeperKind][]string)
	for _, k := range list {
		named[k.kind] = append(named[k.kind], k.name)
	}
	var parts, steps []string
	for _, kind := range []*keeperKind{&spaceKind, &pausedKind, &resumedKind} {
		if names := named[kind]; len(names) > 0 {
			parts = append(parts, counted(len(names), kind.name, kind.plural)+": "+shorten(names))
			steps = append(steps, fmt.Sprintf("`%s %s`", kind.remove, strings.Join(names, " ")))
		}
	}
	return strings.Join(parts, " and by "), strings.Join(steps, " and ")
}

// counted is a number of things, with the ending of their plural where it is due.
func counted(n int, thing, plural string) string {
	if n == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d %s%s", n, thing, plural)
}

func (m *Manager) hasFailed(tag string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.failures, func(f failure) bool { return f.tag == tag })
}
