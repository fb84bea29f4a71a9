package server

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// WatchFiles streams what changes in a directory until the client leaves.
func (s *Server) WatchFiles(w http.ResponseWriter, r *http.Request, id api.ID, params api.WatchFilesParams) {
	if err := checkPath("path", params.Path); err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	watch, err := s.m.Watch(ctx, id, sandbox.WatchSpec{Path: params.Path, Recursive: params.Recursive, Entries: params.Entries})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer watch.Close()
	events := newEventWriter(w, cancel)
	events.announce()
	defer events.keepAlive(s.keepAlive)()
	for {
		change, err := watch.Recv()
		if err != nil {
			body := describe(ctx, err)
			note(w, slog.String("error", body.Error))
			events.send(api.WatchEvent{Error: body})
			return
		}
		out := api.WatchEvent{Kind: api.WatchEventKind(change.Kind)}
		out.Name, out.NameB64 = text([]byte(change.Name))
		if change.Entry != nil {
			entry := fileInfo(change.Entry)
			out.Entry = &entry
		}
		events.send(out)
	}
}

// ListTree lists directories.
func (s *Server) ListTree(w http.ResponseWriter, r *http.Request, id api.ID, params api.ListTreeParams) {
	depth := params.Depth
	if !r.URL.Query().Has("depth") {
		depth = 1
	}
	err := checkPath("path", params.Path)
	if depth < 1 || depth > maxDepth {
		err = errors.Join(err, invalid("", "depth: must be 1 to %d, not %d", maxDepth, depth))
	}
	var all []sandbox.FileInfo
	if err == nil {
		all, err = s.m.ListTree(r.Context(), id, params.Path, depth)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, fileInfos(all))
}

// ComposeFile makes one file of several.
func (s *Server) ComposeFile(w http.ResponseWriter, r *http.Request, id api.ID) {
	var req api.ComposeRequest
	if _, err := readJSON(w, r, maxSnapshotBody, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	opts := sandbox.WriteOptions{User: req.User, Parents: req.Parents, Mode: new(fs.FileMode(0o644))}
	errs := []error{checkPath("target", req.Target), checkText("user", req.User)}
	if req.Mode != "" {
		mode, err := parseMode(req.Mode)
		opts.Mode, errs = &mode, append(errs, err)
	}
	if len(req.Sources) == 0 || len(req.Sources) > maxSources {
		errs = append(errs, invalid("", "sources: must be 1 to %d, not %d", maxSources, len(req.Sources)))
	}
	for i, source := range req.Sources {
		errs = append(errs, checkPath(item("sources", i), source))
	}
	err := errors.Join(errs...)
	note(w, slog.String("path", req.Target), slog.Int("sources", len(req.Sources)))
	var info *sandbox.FileInfo
	if err == nil {
		info, err = s.m.ComposeFile(r.Context(), id, req.Target, req.Sources, opts)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, fileInfo(info))
}

// GetUser looks up an account.
func (s *Server) GetUser(w http.ResponseWriter, r *http.Request, id api.ID, name string) {
	u, err := s.m.User(r.Context(), id, name)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, api.User{Name: u.Name, UID: int64(u.UID), GID: int64(u.GID), Home: u.Home})
}

// pairs reads parameters of the form name=value.
func pairs(field string, list []string) (map[string]string, error) {
	var all map[string]string
	for _, pair := range list {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, invalid("for example "+field+"=color=blue", "%s: must be name=value, not %s", field, quote(pair))
		}
		if all == nil {
			all = make(map[string]string)
		}
		all[name] = value
	}
	return all, nil
}
