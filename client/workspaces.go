package client

import (
	"context"
	"net/http"
)

// Workspaces lists the workspaces by name.
func (c *Client) Workspaces(ctx context.Context) ([]Workspace, error) {
	var out []Workspace
	resp, err := c.rest.ListWorkspaces(ctx)
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// Workspace describes one workspace.
func (c *Client) Workspace(ctx context.Context, name string) (*Workspace, error) {
	resp, err := c.rest.GetWorkspace(ctx, name)
	return c.workspace(resp, err, http.StatusOK)
}

// CreateWorkspace makes a workspace and starts it.
func (c *Client) CreateWorkspace(ctx context.Context, req WorkspaceRequest) (*Workspace, error) {
	resp, err := c.rest.CreateWorkspace(ctx, req)
	return c.workspace(resp, err, http.StatusCreated)
}

// SuspendWorkspace saves a workspace to disk and ends its sandbox.
func (c *Client) SuspendWorkspace(ctx context.Context, name string) (*Workspace, error) {
	resp, err := c.rest.SuspendWorkspace(ctx, name)
	return c.workspace(resp, err, http.StatusOK)
}

// ResumeWorkspace lets a suspended workspace run on.
func (c *Client) ResumeWorkspace(ctx context.Context, name string) (*Workspace, error) {
	resp, err := c.rest.ResumeWorkspace(ctx, name)
	return c.workspace(resp, err, http.StatusOK)
}

// RemoveWorkspace removes a workspace and what was saved of it.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.done(c.rest.DeleteWorkspace(ctx, name))
}

func (c *Client) workspace(resp *http.Response, err error, status int) (*Workspace, error) {
	var out Workspace
	if err := c.decode(&out, resp, err, status); err != nil {
		return nil, err
	}
	return &out, nil
}
