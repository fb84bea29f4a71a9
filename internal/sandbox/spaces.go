package sandbox

import (
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/internal/snapshot"
)

// spaceVersion is the version of workspaces' records.
const spaceVersion = 1

// spaceRecord is what is durable of a workspace. Whether it runs is not: after a
// crash it does not.
type spaceRecord struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	BaseTag string `json:"base_tag"` // it began with
	kept
	Limits
	CreatedAt   time.Time `json:"created_at"`
	SuspendedAt time.Time `json:"suspended_at,omitzero"`
}

func (w spaceRecord) Key() string { return w.Name }

func (w spaceRecord) Check() error {
	switch {
	case w.Version != spaceVersion:
		return fmt.Errorf("version %d, this forkd reads version %d", w.Version, spaceVersion)
	case !snapshot.ValidTag(w.Name):
		return fmt.Errorf("bad name %q", w.Name)
	case !snapshot.ValidTag(w.BaseTag) || !snapshot.ValidTag(w.SnapshotTag):
		return fmt.Errorf("bad tags %q and %q", w.BaseTag, w.SnapshotTag)
	}
	if err := w.Limits.check(); err != nil {
		return err
	}
	return w.kept.check()
}
