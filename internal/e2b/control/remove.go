package control

import (
	"net/http"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// removeTemplate removes a template with its snapshots, or a snapshot. Sandboxes
// that come from one go on: it is not to be found any more, and is removed with
// the last of them.
func (a *API) removeTemplate(w http.ResponseWriter, r *http.Request) error {
	found, err := a.store.Resolve(r.PathValue("template"))
	if err != nil {
		return err
	}
	if found.Alias {
		return refuse(http.StatusForbidden, "%q is a configured name for the snapshot %s; `forkd rmi` removes that", found.Name, found.Snapshot)
	}
	tags := []string{found.Snapshot}
	if t, published := a.store.Template(found.Name); published {
		tags = nil
		for _, b := range t.Builds {
			tags = append(tags, b.Snapshot)
		}
	} else if _, err := a.m.Snapshot(found.Snapshot); err != nil {
		return err
	}
	if err := a.store.Discard(found.Name, tags...); err != nil {
		return err
	}
	a.sweep()
	return done(w)
}

// sweep removes the doomed snapshots that nothing comes from. What stands on them
// keeps their layers.
func (a *API) sweep() {
	var gone []string
	for _, tag := range a.store.Doomed() {
		info, err := a.m.Snapshot(tag)
		if err == nil && len(info.Dependents) > 0 {
			continue
		}
		if err == nil {
			_, err = a.m.RemoveSnapshots([]string{tag}, sandbox.RemoveOptions{Force: true})
		}
		switch e, ok := asFault(err); {
		case err == nil, ok && e.Code == sandbox.NotFound:
			gone = append(gone, tag)
		case ok && e.Code == sandbox.InUse: // a paused sandbox resumes from it
		default:
			a.log.Warn("removing a snapshot that was deleted", "snapshot", tag, "error", err)
		}
	}
	if len(gone) == 0 {
		return
	}
	if err := a.store.Gone(gone...); err != nil {
		a.log.Warn("forgetting snapshots that were deleted", "error", err)
	}
}
