package control

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/e2b/template"
	"github.com/forkd-dev/forkd/internal/jsonbody"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// templateJSON is a template in a list: a snapshot with the names that lead to it.
type templateJSON struct {
	TemplateID    string    `json:"templateID"`
	BuildID       string    `json:"buildID"`
	Names         []string  `json:"names"`
	Aliases       []string  `json:"aliases"`
	Public        bool      `json:"public"`
	CPUCount      int       `json:"cpuCount"`
	MemoryMB      int       `json:"memoryMB"`
	DiskSizeMB    int       `json:"diskSizeMB"`
	CreatedAt     time.Time `json:"createdAt"`
	UpdatedAt     time.Time `json:"updatedAt"`
	CreatedBy     *string   `json:"createdBy"`
	LastSpawnedAt *string   `json:"lastSpawnedAt"` // nobody counts
	SpawnCount    int       `json:"spawnCount"`
	BuildCount    int       `json:"buildCount"`
	BuildStatus   string    `json:"buildStatus"`
	EnvdVersion   string    `json:"envdVersion"`
}

func (a *API) templateOf(s *sandbox.SnapshotInfo, id, build string, names []string) templateJSON {
	names = orNone(slices.Compact(slices.Sorted(slices.Values(names))))
	return templateJSON{
		TemplateID: id, BuildID: build, Names: names, Aliases: names,
		CPUCount: s.VCPUs, MemoryMB: s.MemoryMiB, DiskSizeMB: s.DiskMiB,
		CreatedAt: timeOr(s.CreatedAt), UpdatedAt: timeOr(s.CreatedAt), BuildCount: 1, BuildStatus: template.Ready,
		EnvdVersion: a.envd,
	}
}

// templates lists what sandboxes can be made from: the templates that were built,
// and the snapshots that were made otherwise but not taken of sandboxes.
func (a *API) templates(w http.ResponseWriter, r *http.Request) error {
	p, err := pageOf(r.URL.Query())
	if err != nil {
		return err
	}
	if !strings.HasPrefix(r.URL.Path, "/v2/") {
		p.limit = 0
	}
	all, err := a.m.Snapshots()
	if err != nil {
		return err
	}
	known := make(map[string]*sandbox.SnapshotInfo)
	for i := range all {
		known[all[i].Tag] = &all[i]
	}
	list := []templateJSON{}
	published := make(map[string]bool)
	for _, tag := range a.store.Doomed() {
		published[tag] = true // and withdrawn
	}
	for _, t := range a.store.All() {
		for _, b := range t.Builds {
			published[b.Snapshot] = true
		}
		b, ok := t.Latest()
		s := known[b.Snapshot]
		if !ok || s == nil {
			continue
		}
		one := a.templateOf(s, t.Name, b.ID, []string{t.Name})
		one.CreatedAt, one.BuildCount = timeOr(t.Builds[0].CreatedAt), len(t.Builds)
		list = append(list, one)
	}
	for _, s := range all {
		if s.Bootable && s.BranchedFrom == "" && !published[s.Tag] {
			list = append(list, a.templateOf(&s, s.Tag, template.BuildID(s.Tag), append(a.store.Aliases(s.Tag), s.Tag)))
		}
	}
	answer(w, http.StatusOK, turn(w, p, list, func(t templateJSON) string { return key(t.CreatedAt, t.TemplateID) }))
	return nil
}

// find returns the snapshot that a reference leads to, which exists.
func (a *API) find(ref string) (template.Resolved, *sandbox.SnapshotInfo, error) {
	found, err := a.store.Resolve(ref)
	if err != nil {
		return found, nil, err
	}
	info, err := a.m.Snapshot(found.Snapshot)
	if e, ok := asFault(err); ok && e.Code == sandbox.NotFound {
		err = refuse(http.StatusNotFound, "template %q was not found (%s)", clip(ref), hinted(e.Message, e.Hint))
	}
	return found, info, err
}

// buildJSON is a build of a template.
type buildJSON struct {
	BuildID     string     `json:"buildID"`
	Status      string     `json:"status"`
	CPUCount    int        `json:"cpuCount"`
	MemoryMB    int        `json:"memoryMB"`
	DiskSizeMB  int        `json:"diskSizeMB,omitempty"`
	EnvdVersion string     `json:"envdVersion,omitempty"`
	CreatedAt   time.Time  `json:"createdAt"`
	UpdatedAt   time.Time  `json:"updatedAt"`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
}

// template tells of a template and its builds, newest first.
func (a *API) template(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("template")
	name, _, err := template.Parse(id)
	if err != nil {
		return err
	}
	builds := []buildJSON{}
	add := func(s *sandbox.SnapshotInfo, b buildJSON) {
		b.CPUCount, b.MemoryMB, b.DiskSizeMB, b.EnvdVersion = s.VCPUs, s.MemoryMiB, s.DiskMiB, a.envd
		builds = append(builds, b)
	}
	t, published := a.store.Template(name)
	for _, b := range t.Builds {
		if s, err := a.m.Snapshot(b.Snapshot); err == nil {
			add(s, buildJSON{BuildID: b.ID, Status: template.Ready, CreatedAt: b.CreatedAt, UpdatedAt: b.CreatedAt, FinishedAt: &b.CreatedAt})
		}
	}
	for _, b := range a.builder.Builds(name) {
		if b.State != template.Ready {
			add(&sandbox.SnapshotInfo{}, buildJSON{BuildID: b.ID, Status: b.State, CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt})
		}
	}
	names := []string{name}
	if !published && len(builds) == 0 {
		found, s, err := a.find(id)
		if err != nil {
			return err
		}
		at := timeOr(s.CreatedAt)
		add(s, buildJSON{BuildID: found.BuildID, Status: template.Ready, CreatedAt: at, UpdatedAt: at, FinishedAt: &at})
		names = append(names, a.store.Aliases(s.Tag)...)
	}
	if len(builds) == 0 {
		return refuse(http.StatusNotFound, "template %q was not found: its snapshots were removed", clip(id))
	}
	slices.SortStableFunc(builds, func(a, b buildJSON) int { return b.CreatedAt.Compare(a.CreatedAt) })
	slices.Sort(names)
	answer(w, http.StatusOK, struct {
		TemplateID    string      `json:"templateID"`
		Names         []string    `json:"names"`
		Aliases       []string    `json:"aliases"`
		Builds        []buildJSON `json:"builds"`
		Public        bool        `json:"public"`
		CreatedAt     time.Time   `json:"createdAt"`
		UpdatedAt     time.Time   `json:"updatedAt"`
		LastSpawnedAt *string     `json:"lastSpawnedAt"`
		SpawnCount    int         `json:"spawnCount"`
	}{
		TemplateID: name, Names: slices.Compact(names), Aliases: slices.Compact(names), Builds: builds,
		CreatedAt: builds[len(builds)-1].CreatedAt, UpdatedAt: builds[0].UpdatedAt,
	})
	return nil
}

// updateTemplate changes whether a template is public, which none can be.
func (a *API) updateTemplate(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Public *bool `json:"public"`
	}
	if _, err := jsonbody.Read(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Public != nil && *req.Public {
		return missing("public: true", "a daemon has one team, whose templates are its own; `forkd push` gives a snapshot to others")
	}
	found, _, err := a.find(r.PathValue("template"))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		Names []string `json:"names"`
	}{[]string{found.Name}})
	return nil
}

// templatePart serves two routes between which a mux cannot tell: a name below
// aliases, and the tags of a template.
func (a *API) templatePart(w http.ResponseWriter, r *http.Request) error {
	switch name, part := r.PathValue("template"), r.PathValue("part"); {
	case name == "aliases":
		return a.alias(w, part)
	case part == "tags":
		return a.tags(w, name)
	}
	return refuse(http.StatusNotFound, "there is no route %s", clip(r.URL.Path))
}

// alias tells whether a name leads anywhere.
func (a *API) alias(w http.ResponseWriter, name string) error {
	id, _, err := template.Parse(name)
	if err != nil {
		return err
	}
	if _, published := a.store.Template(id); !published {
		if _, _, err := a.find(name); err != nil {
			return err
		}
	}
	answer(w, http.StatusOK, struct {
		TemplateID string `json:"templateID"`
		Public     bool   `json:"public"`
	}{TemplateID: id})
	return nil
}

// tags lists the tags of a template.
func (a *API) tags(w http.ResponseWriter, ref string) error {
	type tagJSON struct {
		Tag       string    `json:"tag"`
		BuildID   string    `json:"buildID"`
		CreatedAt time.Time `json:"createdAt"`
	}
	name, _, err := template.Parse(ref)
	if err != nil {
		return err
	}
	list := []tagJSON{}
	t, published := a.store.Template(name)
	for _, tag := range slices.Sorted(maps.Keys(t.Tags)) {
		if b, ok := t.Build(tag); ok {
			list = append(list, tagJSON{tag, b.ID, b.CreatedAt})
		}
	}
	if !published {
		found, s, err := a.find(ref)
		if err != nil {
			return err
		}
		list = append(list, tagJSON{template.DefaultTag, found.BuildID, timeOr(s.CreatedAt)})
	}
	answer(w, http.StatusOK, list)
	return nil
}

func (a *API) assignTags(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if _, err := jsonbody.Read(w, r, maxBody, &req); err != nil {
		return err
	}
	if len(req.Tags) == 0 {
		return invalid("tags: required")
	}
	if _, _, err := a.find(req.Target); err != nil {
		return err
	}
	build, err := a.store.Assign(req.Target, req.Tags)
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, struct {
		BuildID string   `json:"buildID"`
		Tags    []string `json:"tags"`
	}{build, req.Tags})
	return nil
}

func (a *API) removeTags(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if _, err := jsonbody.Read(w, r, maxBody, &req); err != nil {
		return err
	}
	if len(req.Tags) == 0 {
		return invalid("tags: required")
	}
	if err := a.store.Untag(req.Name, req.Tags); err != nil {
		return err
	}
	return done(w)
}

// teams tells of the one team that there is.
func (a *API) teams(w http.ResponseWriter, _ *http.Request) error {
	type team struct {
		TeamID    string `json:"teamID"`
		Name      string `json:"name"`
		APIKey    string `json:"apiKey"` // whoever asks has it
		IsDefault bool   `json:"isDefault"`
	}
	answer(w, http.StatusOK, []team{{TeamID: "forkd", Name: "forkd", IsDefault: true}})
	return nil
}
