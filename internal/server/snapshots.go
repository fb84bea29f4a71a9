package server

import (
	"context"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ListSnapshots lists snapshots.
func (s *Server) ListSnapshots(w http.ResponseWriter, r *http.Request) {
	all, err := s.m.Snapshots()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	infos := make([]api.SnapshotInfo, len(all))
	for i := range all {
		infos[i] = snapshotInfo(&all[i])
	}
	writeJSON(w, http.StatusOK, infos)
}

// GetSnapshot describes one snapshot and the chain it stands on.
func (s *Server) GetSnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag) {
	if err := checkTag("tag", tag); err != nil {
		s.fail(w, r, err)
		return
	}
	info, err := s.m.Snapshot(tag)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	detail := snapshotDetail(info)
	if info.ParentTag != "" {
		if above, err := s.m.Snapshot(info.ParentTag); err == nil { // it may be gone, its name is still told
			detail.ParentContentHash = above.ContentHash
		}
	}
	writeJSON(w, http.StatusOK, detail)
}

// DeleteSnapshot removes a snapshot, and what the parameters name besides.
func (s *Server) DeleteSnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag, params api.DeleteSnapshotParams) {
	err := checkTag("tag", tag)
	if params.Cascade && params.Force {
		err = errors.Join(err, invalid("cascade ends what runs, too", "cascade, force: exclude each other"))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	removed, err := s.m.RemoveSnapshots([]string{tag}, sandbox.RemoveOptions{Cascade: params.Cascade, Force: params.Force})
	switch {
	case err != nil:
		s.fail(w, r, s.naming(r.Context(), tag, err))
	case params.Cascade:
		writeJSON(w, http.StatusOK, api.RemovedSnapshots{Removed: list(removed)})
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// naming adds to an error what depends on a snapshot, if that is the error.
func (s *Server) naming(ctx context.Context, tag string, err error) error {
	body := describe(ctx, err)
	if body.Code == api.ErrorCodeInUse {
		if info, err := s.m.Snapshot(tag); err == nil {
			body.Dependents = slices.Concat(info.Dependents, info.DependentSnapshots)
		}
	}
	return &refusal{body}
}

// CreateSnapshot makes a snapshot, and tells of its progress to whom asked for
// it.
func (s *Server) CreateSnapshot(w http.ResponseWriter, r *http.Request) {
	var req api.SnapshotRequest
	if _, err := readJSON(w, r, maxSnapshotBody, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	spec, err := snapshotSpec(&req)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("tag", spec.Tag))
	s.produce(w, r, http.StatusCreated, func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
		return s.m.CreateSnapshot(ctx, spec, progress)
	})
}

// work is something that takes its time and ends with a snapshot.
type work func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error)

// produce does work and answers with the snapshot; to whom asks for it, it tells
// of the progress too.
func (s *Server) produce(w http.ResponseWriter, r *http.Request, status int, do work) {
	if accepts(r, ndjsonType) {
		s.produceStream(w, r, do)
		return
	}
	info, err := do(r.Context(), func(sandbox.Progress) {})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, status, snapshotInfo(info))
}

func (s *Server) produceStream(w http.ResponseWriter, r *http.Request, do work) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	out := newEventWriter(w, cancel)
	stop := out.keepAlive(s.keepAlive)
	info, err := do(ctx, func(p sandbox.Progress) {
		out.send(api.SnapshotEvent{Progress: &api.Progress{Step: p.Step, Message: p.Message, Done: p.Done, Total: p.Total}})
	})
	stop()
	switch {
	case err == nil:
		done := snapshotInfo(info)
		out.send(api.SnapshotEvent{Snapshot: &done})
	case out.started():
		body := describe(ctx, err)
		note(w, slog.String("error", body.Error))
		out.send(api.SnapshotEvent{Error: body})
	default:
		s.fail(w, r, err)
	}
}

// accepts reports whether the client asked for a media type by name.
func accepts(r *http.Request, want string) bool {
	for _, header := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(header, ",") {
			if media, _, err := mime.ParseMediaType(part); err == nil && media == want {
				return true
			}
		}
	}
	return false
}

// snapshotSpec checks a request. What it leaves out stays zero; the defaults
// are the domain's.
func snapshotSpec(req *api.SnapshotRequest) (spec sandbox.SnapshotSpec, err error) {
	for field, value := range map[string]string{"image": req.Image, "kernel": req.Kernel, "rootfs": req.Rootfs} {
		if value != "" {
			return spec, unsupported("%s: this build makes snapshots of its own image only", field)
		}
	}
	if !req.Runtime.Valid() && req.Runtime != "" {
		return spec, invalid("", "runtime: must be python or none, not %s", quote(string(req.Runtime)))
	}
	spec = sandbox.SnapshotSpec{
		Tag:       req.Tag,
		Packages:  req.Packages,
		Mirror:    req.Mirror,
		Runtime:   string(req.Runtime),
		WarmUp:    req.WarmUp,
		Languages: languages(req.Languages),
		Setup:     req.Setup,
	}
	if req.Modules != nil {
		// Not nil even when empty: none was asked for, not the default.
		spec.Modules = list(*req.Modules)
	}
	errs := []error{checkTag("tag", req.Tag)}
	num := func(field string, n *int, low, high int) int {
		v, err := number(field, n, 0, low, high)
		errs = append(errs, err)
		return v
	}
	spec.MemoryMiB = num("memory_mib", req.MemoryMiB, sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB)
	spec.VCPUs = num("vcpus", req.VCPUs, 1, sandbox.MaxVCPUs)
	spec.DiskMiB = num("disk_mib", req.DiskMiB, sandbox.MinDiskMiB, sandbox.MaxDiskMiB)
	for i, args := range req.Setup {
		if len(args) == 0 {
			errs = append(errs, invalid("", "%s: must name a program", item("setup", i)))
		}
	}
	return spec, errors.Join(errs...)
}

func languages(list []api.SnapshotRequestLanguages) (names []string) {
	for _, l := range list {
		names = append(names, string(l))
	}
	return names
}
