package sandbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/internal/journal"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// pausedVersion is the version of paused sandboxes' records.
const pausedVersion = 1

// pausedRecord is what is durable of a sandbox that was paused, and what it is
// made of again. It stays while the sandbox runs, so that after a crash it can be put
// back to its last pause.
type pausedRecord struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	BaseTag string `json:"base_tag"` // it was forked from
	kept
	Engine       string `json:"engine"`
	VCPUs        int    `json:"vcpus"`
	MemoryMiB    int    `json:"memory_mib"`
	DiskMiB      int    `json:"disk_mib"`
	BranchedFrom string `json:"branched_from,omitempty"`
	Names        names  `json:"names"`
	Limits
	LifetimeMS int64             `json:"lifetime_ms,omitempty"` // when it is resumed
	OnTimeout  TimeoutAction     `json:"on_timeout"`
	AutoResume bool              `json:"auto_resume,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Front      json.RawMessage   `json:"front,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	PausedAt   time.Time         `json:"paused_at"`
}

func (r pausedRecord) Key() string { return r.ID }

func (r pausedRecord) Check() error {
	switch {
	case r.Version != pausedVersion:
		return fmt.Errorf("version %d, this forkd reads version %d", r.Version, pausedVersion)
	case !journal.ValidID(r.ID):
		return fmt.Errorf("bad id %q", r.ID)
	case !snapshot.ValidTag(r.BaseTag):
		return fmt.Errorf("bad tag %q", r.BaseTag)
	case r.LifetimeMS < 0 || r.LifetimeMS > MaxLifetime.Milliseconds():
		return fmt.Errorf("bad lifetime of %d ms", r.LifetimeMS)
	case r.Names != names{} && !r.Names.valid():
		return fmt.Errorf("bad names %q", r.Names)
	}
	if err := r.terms().check(); err != nil {
		return err
	}
	if err := checkFront(r.Front); err != nil {
		return err
	}
	return r.kept.check()
}

func (r pausedRecord) terms() terms {
	return terms{limits: r.Limits, metadata: r.Metadata, env: r.Env, onTimeout: r.OnTimeout, autoResume: r.AutoResume}
}

// birth is what the sandbox is made of again.
func (r pausedRecord) birth() birth {
	c := birth{
		id: r.ID, tag: r.SnapshotTag, base: r.BaseTag, source: &r.BranchedFrom, names: r.Names, created: r.CreatedAt, pausedAt: r.PausedAt,
		terms: r.terms(), life: life{front: r.Front},
	}
	c.set(time.Duration(r.LifetimeMS)*time.Millisecond, time.Now())
	return c
}

func (r pausedRecord) info() Info {
	return Info{
		ID: r.ID, SnapshotTag: r.BaseTag, Engine: r.Engine, State: Paused, CreatedAt: r.CreatedAt, PausedAt: r.PausedAt,
		Limits: r.Limits, BranchedFrom: r.BranchedFrom, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB,
		Metadata: r.Metadata, OnTimeout: r.OnTimeout, AutoResume: r.AutoResume, Front: r.Front,
	}
}

// pauseOf is the record of a sandbox that is being paused. As long as it is, it was paused when it was before.
func (m *Manager) pauseOf(b *box, k kept) pausedRecord {
	next := recordOf(b, k)
	if last, ok := m.paused.Get(b.id); ok && last.SnapshotTag == k.SnapshotTag {
		next.PausedAt = last.PausedAt
	}
	return next
}

// recordOf describes a sandbox as it is now.
func recordOf(b *box, k kept) pausedRecord {
	b.mu.Lock()
	life := b.life
	b.mu.Unlock()
	return pausedRecord{
		Version: pausedVersion, ID: b.id, BaseTag: b.base, kept: k, Engine: b.engine, BranchedFrom: b.source, Names: b.names,
		VCPUs: b.manifest.VCPUs, MemoryMiB: b.manifest.MemoryMiB, DiskMiB: diskMiB(b.manifest),
		Limits: b.limits, LifetimeMS: life.lifetime.Milliseconds(), OnTimeout: b.onTimeout, AutoResume: b.autoResume,
		Metadata: b.metadata, Env: b.env, Front: life.front, CreatedAt: b.created.UTC(), PausedAt: time.Now().UTC(),
	}
}
