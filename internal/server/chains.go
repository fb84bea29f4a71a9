package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// CompactSnapshot flattens a chain into a new snapshot.
func (s *Server) CompactSnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag) {
	var req api.CompactRequest
	_, err := readJSON(w, r, maxSmallBody, &req)
	if err == nil {
		err = errors.Join(checkTag("tag", tag), checkTag("to", req.To))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("to", req.To))
	info, err := s.m.Compact(r.Context(), tag, req.To)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, snapshotInfo(info))
}

// DeriveSnapshot makes a snapshot of another one after some work in it.
func (s *Server) DeriveSnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag) {
	var req api.DeriveRequest
	_, err := readJSON(w, r, maxSnapshotBody, &req)
	if err == nil {
		err = errors.Join(checkTag("tag", tag), checkDerive(&req))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	spec := sandbox.DeriveSpec{From: tag, Tag: req.Tag, Commands: req.Commands, Evals: req.Evals}
	note(w, slog.String("to", spec.Tag))
	s.produce(w, r, http.StatusCreated, func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
		return s.m.Derive(ctx, spec, progress)
	})
}

func checkDerive(req *api.DeriveRequest) error {
	errs := []error{checkTag("tag", req.Tag)}
	if len(req.Commands)+len(req.Evals) == 0 {
		errs = append(errs, invalid("", "commands, evals: give at least one"))
	}
	for i, args := range req.Commands {
		if len(args) == 0 || args[0] == "" {
			errs = append(errs, invalid("", "%s: must name a program", item("commands", i)))
		}
		for _, arg := range args {
			errs = append(errs, checkText(item("commands", i), arg))
		}
	}
	for i, code := range req.Evals {
		if code == "" {
			errs = append(errs, invalid("", "%s: must not be empty", item("evals", i)))
		}
	}
	return errors.Join(errs...)
}

// VerifySnapshot compares every byte of a snapshot with its hashes.
func (s *Server) VerifySnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag) {
	if err := checkTag("tag", tag); err != nil {
		s.fail(w, r, err)
		return
	}
	s.produce(w, r, http.StatusOK, func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
		if err := s.m.Verify(ctx, tag, progress); err != nil {
			return nil, err
		}
		return s.m.Snapshot(tag)
	})
}

// GetTree lists snapshots and sandboxes with what they come from.
func (s *Server) GetTree(w http.ResponseWriter, r *http.Request) {
	all, err := s.m.Tree()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	nodes := make([]api.TreeNode, len(all))
	for i := range all {
		nodes[i] = treeNode(&all[i])
	}
	writeJSON(w, http.StatusOK, nodes)
}
