package server

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// BranchSandbox makes a snapshot of a running sandbox. A branch whose maker
// cannot have learnt of it is removed again.
func (s *Server) BranchSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.BranchRequest
	err := readOptionalJSON(w, r, maxSmallBody, &req)
	var spec sandbox.BranchSpec
	if err == nil {
		spec, err = branchSpec(&req)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("mode", string(spec.Mode)), slog.Bool("wait", spec.Wait))
	start := time.Now()
	info, err := s.m.Branch(r.Context(), id, spec)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.metrics.branch.WithLabelValues(string(spec.Mode)).Observe(time.Since(start).Seconds())
	s.metrics.pause.WithLabelValues(string(spec.Mode)).Observe(info.PauseMS / 1e3)
	note(w, slog.String("tag", info.Tag), slog.Float64("pause_ms", info.PauseMS))
	if r.Context().Err() == nil {
		err = writeJSON(w, http.StatusCreated, snapshotInfo(info))
	}
	if err != nil || r.Context().Err() != nil {
		if _, err := s.m.RemoveSnapshots([]string{info.Tag}, sandbox.RemoveOptions{}); err != nil {
			s.log.Warn("removing a branch that nobody waits for", "tag", info.Tag, "error", err)
		}
	}
}

// branchSpec checks a request.
func branchSpec(req *api.BranchRequest) (spec sandbox.BranchSpec, err error) {
	if req.Mode == "" {
		req.Mode = api.BranchModeLive
	}
	if !req.Mode.Valid() {
		return spec, invalid("", "mode: must be full, diff or live, not %s", quote(string(req.Mode)))
	}
	if req.Tag != "" {
		err = checkTag("tag", req.Tag)
	}
	wait := req.Wait == nil || *req.Wait
	return sandbox.BranchSpec{Tag: req.Tag, Mode: sandbox.BranchMode(req.Mode), Wait: wait}, err
}

// RollbackSandbox takes a sandbox back to a snapshot.
func (s *Server) RollbackSandbox(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.RollbackRequest
	_, err := readJSON(w, r, maxSmallBody, &req)
	if err == nil {
		err = checkTag("snapshot_tag", req.SnapshotTag)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("tag", req.SnapshotTag))
	info, err := s.m.Rollback(r.Context(), id, req.SnapshotTag)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, sandboxInfo(info))
}
