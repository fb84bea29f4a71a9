package sandbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/image"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// Snapshots lists all snapshots, those that cannot be booted too.
func (m *Manager) Snapshots() ([]SnapshotInfo, error) {
	var list []SnapshotInfo
	for _, e := range m.store.List() {
		list = append(list, m.describe(e))
	}
	for _, f := range m.failed() {
		if !slices.ContainsFunc(list, func(s SnapshotInfo) bool { return s.Tag == f.Tag }) {
			list = append(list, f)
		}
	}
	return list, nil
}

// Snapshot describes one snapshot in detail.
func (m *Manager) Snapshot(tag string) (*SnapshotInfo, error) {
	if !snapshot.ValidTag(tag) {
		return nil, badTag(tag)
	}
	// A branch that is being written may fail at any moment, and is then among the
	// failures before it is gone from the store.
	e := m.store.Inspect(tag)
	if !m.store.Exists(tag) {
		for _, info := range m.failed() {
			if info.Tag == tag {
				return &info, nil
			}
		}
		return nil, fail(NotFound, m.tagHint(), "there is no snapshot %q", tag)
	}
	info := m.describe(e)
	info.Dependents = m.dependents(tag)
	if man := e.Manifest; man != nil {
		info.MemoryLogicalBytes = int64(man.Memory.Pages) * page.Size
		info.MemoryPhysicalBytes = man.Memory.Bytes()
		info.DiskPhysicalBytes = man.Scratch.Bytes()
		info.VMStateBytes = man.State.Size
		info.ContentHash = man.ContentHash()
	}
	if chain, err := m.store.Chain(tag); err == nil {
		info.ChainDepth, info.Ancestors, info.DependentSnapshots = chain.Depth, chain.Ancestors, chain.Dependents
		info.ExclusiveBytes = chain.ExclusiveBytes
	}
	return &info, nil
}

func (m *Manager) describe(e snapshot.Entry) SnapshotInfo {
	info := SnapshotInfo{Tag: e.Tag, Dir: m.store.Dir(e.Tag), Status: string(e.Status), Bootable: e.Err == nil}
	if e.Err != nil {
		info.Warning = e.Err.Error()
	}
	info.KeptFor = m.keptFor(e.Tag)
	if man := e.Manifest; man != nil {
		info.CreatedAt, info.BranchedFrom, info.ParentTag = man.CreatedAt, man.BranchedFrom, man.ParentTag
		info.Mode, info.PauseMS = BranchMode(man.Mode), man.PauseMS
		info.Engine, info.VCPUs, info.MemoryMiB, info.Modules = man.Engine, man.VCPUs, man.MemoryMiB, man.Modules
		info.DiskMiB = diskMiB(man)
	}
	return info
}

// diskMiB is the size of a guest's scratch disk.
func diskMiB(man *snapshot.Manifest) int { return int(man.Scratch.Pages >> (20 - page.Shift)) }

// dependents returns the ids of the sandboxes that run from a snapshot.
func (m *Manager) dependents(tag string) (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, b := range m.boxes {
		if b.tag == tag && b.state() == Running {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// pruneImages removes the images that no snapshot was made from, but for the
// newest: that is likely to be wanted again. While a snapshot is being made it
// does nothing. What it cannot remove it tries again the next time.
func (m *Manager) pruneImages() {
	if !m.images.TryLock() {
		return
	}
	defer m.images.Unlock()
	used := make(map[string]bool)
	for _, e := range m.store.List() {
		if e.Manifest != nil {
			used[e.Manifest.ImageKey] = true
		}
	}
	images, _ := image.List(m.opts.Home)
	for i, img := range images {
		if i == 0 || used[img.Key] {
			continue
		}
		if err := image.Remove(context.Background(), m.opts.Home, img.Key); err != nil {
			m.opts.Log.Warn("removing an image that no snapshot uses", "image", img.Key, "error", err)
		}
	}
}

// shorten names a few of many ids.
func shorten(ids []string) string {
	const show = 5
	text := ""
	for i, id := range ids[:min(show, len(ids))] {
		if i > 0 {
			text += ", "
		}
		text += id
	}
	if len(ids) > show {
		text += fmt.Sprintf(" and %d more", len(ids)-show)
	}
	return text
}

// Progress steps of CreateSnapshot, in order.
const (
	stepPackages = "packages"
	stepImage    = "image"
	stepBoot     = "boot"
	stepWarm     = "warm"
	stepFreeze   = "freeze"
	stepVerify   = "verify" // of Verify
)

// CreateSnapshot builds the image, boots a parent from it, warms its runtime,
// and freezes it under spec.Tag. The parent is ended. If ctx ends or anything
// fails, nothing of the snapshot stays.
func (m *Manager) CreateSnapshot(ctx context.Context, spec SnapshotSpec, progress func(Progress)) (*SnapshotInfo, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	spec, err := checkSpec(spec, m.opts.Engine.ISA)
	if err != nil {
		return nil, err
	}
	if m.store.Exists(spec.Tag) {
		return nil, taken(spec.Tag)
	}
	if !m.building.try(spec.Tag) {
		return nil, fail(AlreadyExists, "wait until it is ready", "snapshot %q is being made already", spec.Tag)
	}
	defer m.building.release(spec.Tag)
	cost := buildCost(spec.MemoryMiB)
	done, err := m.admit(need{what: fmt.Sprintf("making snapshot %q", spec.Tag), memory: cost, disk: cost})
	if err != nil {
		return nil, err
	}
	defer done()
	if err := m.build(ctx, spec, progress); err != nil {
		return nil, wrap(err, "making snapshot %q", spec.Tag)
	}
	return m.Snapshot(spec.Tag)
}

// Limits of a SnapshotSpec; memory must be even, too.
const (
	MinMemoryMiB = 128
	MaxMemoryMiB = 64 << 10
	MinDiskMiB   = 16
	MaxDiskMiB   = 256 << 10
	MaxVCPUs     = 16 // on the board that has room for most; see board.Map
)

const (
	defaultMemoryMiB = 512
	defaultDiskMiB   = 4096
)

func checkSpec(spec SnapshotSpec, isa engine.ISA) (SnapshotSpec, error) {
	most, err := board.For(string(isa))
	if err != nil {
		return spec, err
	}
	if !snapshot.ValidTag(spec.Tag) {
		return spec, badTag(spec.Tag)
	}
	defaulted(&spec.MemoryMiB, defaultMemoryMiB)
	defaulted(&spec.DiskMiB, defaultDiskMiB)
	defaulted(&spec.VCPUs, 1)
	if spec.Runtime == "" {
		spec.Runtime = runtimePython
	}
	if spec.Runtime == runtimePython && spec.Modules == nil {
		spec.Modules = []string{"numpy", "numpy.random"} // numpy imports the latter when it is first used, which takes a while
	}
	switch {
	case spec.Runtime != runtimePython && spec.Runtime != runtimeNone:
		return spec, fail(InvalidArgument, "runtimes are python and none", "unknown runtime %q", spec.Runtime)
	case slices.ContainsFunc(spec.Languages, func(l string) bool { return l != JavaScript && l != Bash }):
		return spec, fail(InvalidArgument, "languages besides the runtime's are javascript and bash", "unknown language among %q", spec.Languages)
	case spec.Runtime == runtimeNone && len(spec.Modules)+len(spec.WarmUp) > 0:
		return spec, fail(InvalidArgument, "", "modules and warm-up need a runtime")
	case spec.MemoryMiB < MinMemoryMiB || spec.MemoryMiB > MaxMemoryMiB || spec.MemoryMiB%2 != 0:
		return spec, fail(InvalidArgument, "", "memory must be an even number of MiB from %d to %d, not %d", MinMemoryMiB, MaxMemoryMiB, spec.MemoryMiB)
	case spec.DiskMiB < MinDiskMiB || spec.DiskMiB > MaxDiskMiB:
		return spec, fail(InvalidArgument, "", "disk must be %d to %d MiB, not %d", MinDiskMiB, MaxDiskMiB, spec.DiskMiB)
	case spec.VCPUs < 1 || spec.VCPUs > most.MaxVCPUs:
		return spec, fail(InvalidArgument, "", "a %s machine has 1 to %d vCPUs, not %d", isa, most.MaxVCPUs, spec.VCPUs)
	}
	return spec, nil
}

func defaulted(v *int, value int) {
	if *v == 0 {
		*v = value
	}
}
