package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/forkd-dev/forkd/api"
)

const bytesType = "application/octet-stream"

// ReadFile opens a file for reading; the caller closes it. A read that ends with
// io.EOF has had the whole file.
func (c *Client) ReadFile(ctx context.Context, id, path string) (io.ReadCloser, error) {
	resp, err := c.rest.ReadFile(ctx, id, &api.ReadFileParams{Path: path})
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// ReadFileAt opens length bytes of a file from offset on; fewer come if it ends
// before.
func (c *Client) ReadFileAt(ctx context.Context, id, path string, offset, length int64) (io.ReadCloser, error) {
	resp, err := c.rest.ReadFile(ctx, id, &api.ReadFileParams{Path: path, Offset: offset, Length: &length})
	if resp, err = c.check(resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteOptions say how WriteFile creates a file.
type WriteOptions struct {
	Mode    *fs.FileMode      // permission bits; nil: 0644
	User    string            // owner; empty: root
	Parents bool              // make missing directories
	Attrs   map[string]string // extended attributes of the namespace user, without "user."
}

// WriteFile creates or replaces a file with what r holds.
func (c *Client) WriteFile(ctx context.Context, id, path string, r io.Reader, opts WriteOptions) error {
	params := api.WriteFileParams{Path: path, User: opts.User, Parents: opts.Parents}
	if opts.Mode != nil {
		if *opts.Mode != opts.Mode.Perm() {
			return errors.New("writing a file: the mode may have permission bits only")
		}
		params.Mode = fmt.Sprintf("%04o", *opts.Mode)
	}
	for name, value := range opts.Attrs {
		params.Attr = append(params.Attr, name+"="+value)
	}
	return c.done(c.rest.WriteFileWithBody(ctx, id, &params, bytesType, r))
}

// ComposeFile makes a file of the contents of others, in their order, and removes
// those. It appears in one step.
func (c *Client) ComposeFile(ctx context.Context, id string, req ComposeRequest) (*FileInfo, error) {
	var out FileInfo
	resp, err := c.rest.ComposeFile(ctx, id, req)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// ListTree lists a directory and, up to a depth, those below it. A depth of 1 is the
// directory alone.
func (c *Client) ListTree(ctx context.Context, id, path string, depth int) ([]FileInfo, error) {
	var out []FileInfo
	resp, err := c.rest.ListTree(ctx, id, &api.ListTreeParams{Path: path, Depth: depth})
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// User looks up an account in a sandbox, by name or number.
func (c *Client) User(ctx context.Context, id, name string) (*User, error) {
	var out User
	resp, err := c.rest.GetUser(ctx, id, name)
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// ListFiles lists a directory.
func (c *Client) ListFiles(ctx context.Context, id, path string) ([]FileInfo, error) {
	var out []FileInfo
	resp, err := c.rest.ListFiles(ctx, id, &api.ListFilesParams{Path: path})
	return out, c.decode(&out, resp, err, http.StatusOK)
}

// StatFile describes a file; it does not follow a symbolic link.
func (c *Client) StatFile(ctx context.Context, id, path string) (*FileInfo, error) {
	var out FileInfo
	resp, err := c.rest.StatFile(ctx, id, &api.StatFileParams{Path: path})
	if err := c.decode(&out, resp, err, http.StatusOK); err != nil {
		return nil, err
	}
	return &out, nil
}

// MakeDirOptions say how MakeDir makes a directory.
type MakeDirOptions struct {
	Parents bool         // make missing ones above it too, and be content with one that is there
	Mode    *fs.FileMode // permission bits of what is made; nil: 0755
}

// MakeDir makes a directory.
func (c *Client) MakeDir(ctx context.Context, id, path string, opts MakeDirOptions) error {
	params := api.MakeDirParams{Path: path, Parents: opts.Parents}
	if opts.Mode != nil {
		if *opts.Mode != opts.Mode.Perm() {
			return errors.New("making a directory: the mode may have permission bits only")
		}
		params.Mode = fmt.Sprintf("%04o", *opts.Mode)
	}
	return c.done(c.rest.MakeDir(ctx, id, &params))
}

// RenameFile moves a file or a directory.
func (c *Client) RenameFile(ctx context.Context, id, from, to string) error {
	return c.done(c.rest.RenameFile(ctx, id, &api.RenameFileParams{From: from, To: to}))
}

// RemoveFile removes a file or a directory, with recursive all that is in it.
func (c *Client) RemoveFile(ctx context.Context, id, path string, recursive bool) error {
	return c.done(c.rest.RemoveFile(ctx, id, &api.RemoveFileParams{Path: path, Recursive: recursive}))
}
