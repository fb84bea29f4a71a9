package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	packType  = "application/zstd"
	bytesType = "application/octet-stream"

	packSuffix = ".forkd-snapshot.tar.zst"
	// maxReference bounds where a snapshot is said to be, in bytes.
	maxReference = 2048
)

// PackSnapshot streams a snapshot as one file. Until its first byte an error
// has a status of its own; after that, only cutting the connection tells the
// client that the pack is not complete.
func (s *Server) PackSnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag) {
	if err := checkTag("tag", tag); err != nil {
		s.fail(w, r, err)
		return
	}
	out := &content{w: w, mime: packType, name: tag + packSuffix}
	err := s.m.Pack(r.Context(), tag, out, func(sandbox.Progress) {})
	switch {
	case err == nil:
		out.begin()
	case !out.begun:
		s.fail(w, r, err)
	default:
		note(w, slog.String("error", err.Error()))
		panic(http.ErrAbortHandler)
	}
}

// UnpackSnapshot makes a snapshot of the pack that the body is.
func (s *Server) UnpackSnapshot(w http.ResponseWriter, r *http.Request, params api.UnpackSnapshotParams) {
	err := wantType(r, packType)
	if err != nil && wantType(r, bytesType) == nil {
		err = nil
	}
	if params.Tag != "" {
		err = errors.Join(err, checkTag("tag", params.Tag))
	}
	if err != nil {
		w.Header().Set("Connection", "close") // a body follows that nobody reads
		s.fail(w, r, err)
		return
	}
	info, err := s.m.Unpack(r.Context(), r.Body, params.Tag, func(sandbox.Progress) {})
	if err != nil {
		w.Header().Set("Connection", "close")
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("tag", info.Tag))
	writeJSON(w, http.StatusCreated, snapshotInfo(info))
}

// PushSnapshot sends a snapshot elsewhere.
func (s *Server) PushSnapshot(w http.ResponseWriter, r *http.Request, tag api.Tag) {
	var req api.PushRequest
	_, err := readJSON(w, r, maxSmallBody, &req)
	if err == nil {
		err = errors.Join(checkTag("tag", tag), checkReference(req.Reference))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	opts := sandbox.ShipOptions{HubURL: req.HubURL, HubToken: req.HubToken}
	s.produce(w, r, http.StatusOK, func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
		if err := s.m.Push(ctx, tag, req.Reference, opts, progress); err != nil {
			return nil, err
		}
		return s.m.Snapshot(tag)
	})
}

// PullSnapshot fetches a snapshot from elsewhere.
func (s *Server) PullSnapshot(w http.ResponseWriter, r *http.Request) {
	var req api.PullRequest
	_, err := readJSON(w, r, maxSmallBody, &req)
	if err == nil {
		err = checkReference(req.Reference)
		if req.Tag != "" {
			err = errors.Join(err, checkTag("tag", req.Tag))
		}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	opts := sandbox.ShipOptions{HubURL: req.HubURL, HubToken: req.HubToken}
	s.produce(w, r, http.StatusCreated, func(ctx context.Context, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
		return s.m.Pull(ctx, req.Reference, req.Tag, opts, progress)
	})
}

// checkReference sees that something of a reasonable size is named; what it
// names is the domain's to say.
func checkReference(reference string) error {
	switch {
	case reference == "":
		return invalid("", "reference: required")
	case len(reference) > maxReference:
		return invalid("", "reference: over %d bytes", maxReference)
	}
	return checkText("reference", reference)
}
