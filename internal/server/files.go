package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// ReadFile streams a file. Until its first byte an error has a status of its
// own; after that, only cutting the connection tells the client that the file
// is not complete.
func (s *Server) ReadFile(w http.ResponseWriter, r *http.Request, id api.ID, params api.ReadFileParams) {
	length := int64(-1)
	if params.Length != nil {
		length = *params.Length
	}
	err := checkPath("path", params.Path)
	if params.Offset < 0 || (params.Length != nil && length < 0) {
		err = errors.Join(err, invalid("", "offset and length: must not be negative"))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := &content{w: w, mime: bytesType}
	err = s.m.ReadFile(r.Context(), id, params.Path, params.Offset, length, out)
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

// content puts off the status line until there is a first byte.
type content struct {
	w     http.ResponseWriter
	mime  string
	name  string // of the file that it is; empty: none
	begun bool
}

func (c *content) begin() {
	if c.begun {
		return
	}
	c.begun = true
	c.w.Header().Set("Content-Type", c.mime)
	if c.name != "" {
		c.w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", c.name))
	}
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(http.StatusOK)
}

func (c *content) Write(b []byte) (int, error) {
	c.begin()
	return c.w.Write(b)
}

var modePattern = regexp.MustCompile(`^0?[0-7]{3,4}$`)

// WriteFile creates or replaces a file with the body.
func (s *Server) WriteFile(w http.ResponseWriter, r *http.Request, id api.ID, params api.WriteFileParams) {
	opts := sandbox.WriteOptions{User: params.User, Parents: params.Parents, Mode: new(fs.FileMode(0o644))}
	err := errors.Join(checkPath("path", params.Path), checkText("user", params.User))
	if params.Mode != "" {
		mode, modeErr := parseMode(params.Mode)
		opts.Mode, err = &mode, errors.Join(err, modeErr)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if opts.Attrs, err = pairs("attr", params.Attr); err != nil {
		s.fail(w, r, err)
		return
	}
	note(w, slog.String("path", params.Path))
	s.finish(w, r, s.m.WriteFile(r.Context(), id, params.Path, r.Body, opts))
}

func parseMode(text string) (fs.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 12)
	if err != nil || !modePattern.MatchString(text) {
		return 0, invalid("for example 0644", "mode: must be permission bits in octal, not %s", quote(text))
	}
	return fileMode(uint32(bits)), nil
}

// RemoveFile removes a file or a directory.
func (s *Server) RemoveFile(w http.ResponseWriter, r *http.Request, id api.ID, params api.RemoveFileParams) {
	note(w, slog.String("path", params.Path))
	err := checkPath("path", params.Path)
	if err == nil {
		err = s.m.RemoveFile(r.Context(), id, params.Path, params.Recursive)
	}
	s.finish(w, r, err)
}

// ListFiles lists a directory.
func (s *Server) ListFiles(w http.ResponseWriter, r *http.Request, id api.ID, params api.ListFilesParams) {
	err := checkPath("path", params.Path)
	var all []sandbox.FileInfo
	if err == nil {
		all, err = s.m.ListFiles(r.Context(), id, params.Path)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	slices.SortFunc(all, func(a, b sandbox.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	writeJSON(w, http.StatusOK, fileInfos(all))
}

func fileInfos(all []sandbox.FileInfo) []api.FileInfo {
	infos := make([]api.FileInfo, len(all))
	for i := range all {
		infos[i] = fileInfo(&all[i])
	}
	return infos
}

// StatFile describes a file.
func (s *Server) StatFile(w http.ResponseWriter, r *http.Request, id api.ID, params api.StatFileParams) {
	err := checkPath("path", params.Path)
	var info *sandbox.FileInfo
	if err == nil {
		info, err = s.m.StatFile(r.Context(), id, params.Path)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, fileInfo(info))
}

// MakeDir makes a directory.
func (s *Server) MakeDir(w http.ResponseWriter, r *http.Request, id api.ID, params api.MakeDirParams) {
	note(w, slog.String("path", params.Path))
	opts := sandbox.MakeDirOptions{Parents: params.Parents, User: params.User}
	err := errors.Join(checkPath("path", params.Path), checkText("user", params.User))
	if params.Mode != "" {
		mode, modeErr := parseMode(params.Mode)
		opts.Mode, err = &mode, errors.Join(err, modeErr)
	}
	if err == nil {
		_, _, err = s.m.MakeDir(r.Context(), id, params.Path, opts)
	}
	s.finish(w, r, err)
}

// RenameFile moves a file or a directory.
func (s *Server) RenameFile(w http.ResponseWriter, r *http.Request, id api.ID, params api.RenameFileParams) {
	note(w, slog.String("path", params.From), slog.String("to", params.To))
	err := errors.Join(checkPath("from", params.From), checkPath("to", params.To))
	if err == nil {
		err = s.m.RenameFile(r.Context(), id, params.From, params.To)
	}
	s.finish(w, r, err)
}
