package sandbox

import (
	"cmp"

	"github.com/forkd-dev/forkd/internal/cell"
	"github.com/forkd-dev/forkd/internal/journal"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// siblings is what the journal is told of sandboxes that are there. Those of one cell have most in common.
func siblings(boxes ...*box) (list []journal.Siblings) {
	var last *cell.Cell
	for _, b := range boxes {
		if b.fleeting { // nobody knows it yet, or ever will
			continue
		}
		if home := b.machine.Cell(); home != last {
			list, last = append(list, journal.Siblings{Origin: originOf(b)}), home
		}
		made := &list[len(list)-1]
		made.IDs = append(made.IDs, b.id)
	}
	return list
}

func originOf(b *box) journal.Origin {
	home := b.machine.Cell()
	runs := b.tag
	if runs == b.base {
		runs = ""
	}
	return journal.Origin{
		Tag: b.base, Runs: runs, Source: b.source, Workspace: b.workspace, Cell: home.Name, PID: home.PID,
		VCPUs: b.manifest.VCPUs, MemoryMiB: b.manifest.MemoryMiB, DiskMiB: diskMiB(b.manifest),
		Created: b.created.UTC().Round(0), Restored: b.restored.UTC().Round(0),
	}
}

// outline is the inverse of originOf: a sandbox of which is only known what the journal tells, and when it was
// paused, if ever.
func (m *Manager) outline(has journal.Sandbox) *box {
	man := &snapshot.Manifest{VCPUs: has.VCPUs, MemoryMiB: has.MemoryMiB, BranchedFrom: has.Source}
	man.Scratch.Pages = page.Number(has.DiskMiB) << (20 - page.Shift)
	last, _ := m.saved(has.ID)
	b := m.newBox(man, birth{
		id: has.ID, tag: cmp.Or(has.Runs, has.Tag), base: has.Tag, workspace: has.Workspace, created: has.Created, pausedAt: last.PausedAt,
	})
	b.restored = has.Restored
	return b
}

// noteEnd has the journal tell that a sandbox has ended by itself.
func (m *Manager) noteEnd(b *box) {
	m.journal.Ended(b.id, journal.State(b.state()), b.endReason())
}
