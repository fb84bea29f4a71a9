package control

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/front"
	"github.com/forkd-dev/forkd/internal/e2b/template"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// snapshotJSON is a snapshot that was taken of a sandbox. Its id is its tag.
type snapshotJSON struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// snapshot takes one of a sandbox, which goes on. A name that is taken leads to
// the newest snapshot of that name from then on; the others keep their ids.
func (a *API) snapshot(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string `json:"name"`
	}
	if err := jsonbody.ReadOptional(w, r, maxBody, &req); err != nil {
		return err
	}
	id := r.PathValue("id")
	_, rec, err := a.live(r.Context(), id)
	if err != nil {
		return err
	}
	name, tag := "", template.DefaultTag
	if req.Name != "" {
		if name, tag, err = template.Parse(req.Name); err != nil {
			return err
		}
	}
	if name != "" && a.store.IsAlias(name) {
		return refuse(http.StatusConflict, "name: %q is a configured name; choose another", name)
	}
	made, err := a.branch(r, id, name)
	if err != nil {
		return err
	}
	out := snapshotJSON{SnapshotID: made.Tag, Names: []string{}}
	if name != "" {
		out.Names = append(out.Names, name)
	}
	if err := a.publish(id, rec, made, name, tag); err != nil {
		a.m.RemoveSnapshots([]string{made.Tag}, sandbox.RemoveOptions{Force: true})
		return err
	}
	a.journal.note(id, levelInfo, "snapshot taken", "snapshot", made.Tag)
	answer(w, http.StatusCreated, out)
	return nil
}

// publish has a name, if there is one, lead to a snapshot, and sandboxes of the
// snapshot begin with what its source has.
func (a *API) publish(id string, rec front.Record, made *sandbox.SnapshotInfo, name, tag string) error {
	settings := template.Settings{User: rec.User, Workdir: rec.Workdir}
	env, err := a.m.Environment(id)
	if err != nil {
		return err
	}
	settings.Env = env
	if name == "" {
		return a.store.Keep(made.Tag, settings)
	}
	build := template.Build{ID: template.BuildID(made.Tag), Snapshot: made.Tag, CreatedAt: made.CreatedAt}
	return a.store.Publish(name, build, settings, tag)
}

// branch takes a snapshot under its name if that is free, and under one made of it
// otherwise.
func (a *API) branch(r *http.Request, id, name string) (*sandbox.SnapshotInfo, error) {
	spec := sandbox.BranchSpec{Tag: name, Mode: sandbox.BranchLive, Wait: true}
	_, published := a.store.Template(name)
	if name != "" && published {
		spec.Tag = varied(name)
	}
	made, err := a.m.Branch(r.Context(), id, spec)
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.AlreadyExists && spec.Tag == name && name != "" {
		spec.Tag = varied(name)
		made, err = a.m.Branch(r.Context(), id, spec)
	}
	return made, err
}

// varied returns a name that nothing has.
func varied(name string) string {
	var b [4]byte
	rand.Read(b[:])
	return name[:min(len(name), 55)] + "-" + hex.EncodeToString(b[:])
}

// snapshots lists the snapshots that were taken of sandboxes.
func (a *API) snapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	p, err := pageOf(q)
	if err != nil {
		return err
	}
	all, err := a.m.Snapshots()
	if err != nil {
		return err
	}
	var only string
	if ref := q.Get("name"); ref != "" {
		found, err := a.store.Resolve(ref)
		if err != nil {
			return err
		}
		only = found.Snapshot
	}
	names, doomed := a.names(), a.store.Doomed()
	source := q.Get("sandboxID")
	all = slices.DeleteFunc(all, func(s sandbox.SnapshotInfo) bool {
		return !isTaken(&s) || slices.Contains(doomed, s.Tag) || source != "" && s.BranchedFrom != source || only != "" && s.Tag != only
	})
	list := []snapshotJSON{}
	for _, s := range turn(w, p, all, snapshotKey) {
		list = append(list, snapshotJSON{SnapshotID: s.Tag, Names: orNone(names[s.Tag])})
	}
	answer(w, http.StatusOK, list)
	return nil
}

func snapshotKey(s sandbox.SnapshotInfo) string { return key(s.CreatedAt, s.Tag) }

// isTaken reports whether somebody took a snapshot of a sandbox. What holds a paused
// sandbox or a workspace was not asked for.
func isTaken(s *sandbox.SnapshotInfo) bool {
	return s.BranchedFrom != "" && s.KeptFor == "" && s.Bootable
}

// names returns the names that lead to each snapshot.
func (a *API) names() map[string][]string {
	names := make(map[string][]string)
	for _, t := range a.store.All() {
		for _, b := range t.Builds {
			names[b.Snapshot] = append(names[b.Snapshot], t.Name)
		}
	}
	return names
}

func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// timeOr is a time, or the zero date of clients.
func timeOr(t time.Time) time.Time {
	if t.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return t.UTC()
}
