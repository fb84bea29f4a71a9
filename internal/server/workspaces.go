package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ListWorkspaces lists workspaces.
func (s *Server) ListWorkspaces(w http.ResponseWriter, r *http.Request) {
	all, err := s.m.Workspaces()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := make([]api.Workspace, len(all))
	for i := range all {
		out[i] = workspace(&all[i])
	}
	writeJSON(w, http.StatusOK, out)
}

// CreateWorkspace makes a workspace and starts it.
func (s *Server) CreateWorkspace(w http.ResponseWriter, r *http.Request) {
	var req api.WorkspaceRequest
	body, err := readJSON(w, r, maxSmallBody, &req)
	spec := sandbox.WorkspaceSpec{Name: req.Name, Tag: req.SnapshotTag}
	if err == nil {
		var limitErr error
		spec.Limits, limitErr = readLimits(body)
		err = errors.Join(checkName("name", req.Name), checkTag("snapshot_tag", req.SnapshotTag), limitErr)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("workspace", spec.Name), slog.String("tag", spec.Tag))
	made, err := s.m.CreateWorkspace(r.Context(), spec)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, workspace(made))
}

// GetWorkspace describes one workspace.
func (s *Server) GetWorkspace(w http.ResponseWriter, r *http.Request, name api.WorkspaceName) {
	s.onWorkspace(w, r, name, func(context.Context, string) (*sandbox.Workspace, error) {
		all, err := s.m.Workspaces()
		if err != nil {
			return nil, err
		}
		for i := range all {
			if all[i].Name == name {
				return &all[i], nil
			}
		}
		return nil, refuse(api.ErrorCodeNotFound, "`forkd workspace ls` lists the workspaces", "there is no workspace %q", name)
	})
}

// SuspendWorkspace saves a workspace and ends its sandbox.
func (s *Server) SuspendWorkspace(w http.ResponseWriter, r *http.Request, name api.WorkspaceName) {
	s.onWorkspace(w, r, name, s.m.SuspendWorkspace)
}

// ResumeWorkspace lets a workspace run on.
func (s *Server) ResumeWorkspace(w http.ResponseWriter, r *http.Request, name api.WorkspaceName) {
	s.onWorkspace(w, r, name, s.m.ResumeWorkspace)
}

// onWorkspace answers with the workspace that do returns.
func (s *Server) onWorkspace(w http.ResponseWriter, r *http.Request, name string,
	do func(ctx context.Context, name string) (*sandbox.Workspace, error)) {
	note(w, slog.String("workspace", name))
	err := checkName("name", name)
	var found *sandbox.Workspace
	if err == nil {
		found, err = do(r.Context(), name)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, workspace(found))
}

// DeleteWorkspace removes a workspace and what was saved of it.
func (s *Server) DeleteWorkspace(w http.ResponseWriter, r *http.Request, name api.WorkspaceName) {
	note(w, slog.String("workspace", name))
	err := checkName("name", name)
	if err == nil {
		err = s.m.RemoveWorkspace(r.Context(), name)
	}
	s.finish(w, r, err)
}
