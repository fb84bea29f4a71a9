package envd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// maxFiles is how many files one request may write, or compose.
const maxFiles = 10_000

// written describes a file that was written.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func newWritten(name string, metadata map[string]string) written {
	return written{Path: text(name), Name: text(path.Base(name)), Type: "file", Metadata: metadata}
}

// upload answers POST /files. Files that were complete when another fails stay.
func (s *Service) upload(w http.ResponseWriter, r *http.Request) {
	c, q := callOf(r.Context()), r.URL.Query()
	if err := c.admitFile(r, q, time.Now()); err != nil {
		writeError(w, http.StatusUnauthorized, err.Error())
		return
	}
	if q.Has("username") {
		c.as(q.Get("username"))
	}
	files, err := c.receive(r, q)
	if err != nil {
		fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, files)
}

// receive writes the files that the request's body has.
func (c *call) receive(r *http.Request, q url.Values) ([]written, error) {
	body, err := decoded(r)
	if err != nil {
		return nil, &statusError{http.StatusBadRequest, err}
	}
	up := &upload{call: c, metadata: metadataOf(r.Header), files: []written{}}
	if err := checkMetadata(up.metadata); err != nil {
		return nil, err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "application/octet-stream":
		if !q.Has("path") {
			return nil, badRequest("path query parameter is required for raw body upload")
		}
		err = up.write(r.Context(), q.Get("path"), body)
	case err == nil && strings.HasPrefix(kind, "multipart/") && params["boundary"] != "":
		err = up.parts(r.Context(), multipart.NewReader(body, params["boundary"]), q)
	default:
		err = badRequest("unsupported content type: %s, expected multipart/form-data or application/octet-stream",
			r.Header.Get("Content-Type"))
	}
	return up.files, err
}

// upload is the files of one request.
type upload struct {
	call     *call
	metadata map[string]string
	files    []written
}

// parts writes every part with the name file; others are skipped.
func (u *upload) parts(ctx context.Context, form *multipart.Reader, q url.Values) error {
	for {
		part, err := form.NextRawPart()
		if err == io.EOF { // wrapped, it is an end that came too early
			return nil
		}
		if err != nil {
			return badRequest("error reading form: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		name := q.Get("path")
		if !q.Has("path") {
			if name, err = partPath(part); err != nil {
				return err
			}
		}
		if err := u.write(ctx, name, part); err != nil {
			return err
		}
	}
}

// partPath is the part's file name with its directories, which FileName leaves
// out.
func partPath(part *multipart.Part) (string, error) {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] == "" {
		return "", badRequest("a part of the form has no filename, and there is no path query parameter")
	}
	return params["filename"], nil
}

func (u *upload) write(ctx context.Context, given string, body io.Reader) error {
	c := u.call
	name, err := c.path(ctx, given)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(u.files, func(w written) bool { return w.Path == text(name) }) {
		return badRequest("you cannot upload multiple files to the same path '%s' in one upload request, only the first specified file was uploaded", name)
	}
	if len(u.files) == maxFiles {
		return badRequest("one upload request has at most %d files", maxFiles)
	}
	source := &source{r: body}
	err = c.host.WriteFile(ctx, c.id(), name, source, sandbox.WriteOptions{User: c.user, Parents: true, Attrs: attrs(u.metadata)})
	switch {
	case source.err != nil:
		return badRequest("error reading the upload: %w", source.err)
	case err != nil:
		return c.writeError(ctx, name, err)
	}
	u.files = append(u.files, newWritten(name, u.metadata))
	return nil
}

// source is the contents of a file to be. It fills whatever it is given, because
// each Read becomes a message to the guest, and remembers why it could not be read,
// so that this is not taken for a fault of the sandbox.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = s.r.Read(b[n:])
		n += more
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// writeError finds out what it was that is missing or in the way.
func (c *call) writeError(ctx context.Context, name string, err error) error {
	switch {
	case isCode(err, sandbox.NoSpace):
		return &statusError{http.StatusInsufficientStorage, errors.New("not enough disk space available")}
	case isCode(err, sandbox.NotFound), isCode(err, sandbox.InvalidArgument), isCode(err, sandbox.AlreadyExists):
	default:
		return err
	}
	if _, userErr := c.who(ctx); userErr != nil {
		return userErr
	}
	if info, statErr := c.host.StatFile(ctx, c.id(), name); statErr == nil && info.Mode.IsDir() {
		return badRequest("path is a directory: %s", name)
	}
	return badRequest("%s", message(err))
}

const metadataHeader = "X-Metadata-"

// metadataOf reads the headers that are metadata for the files of an upload.
func metadataOf(h http.Header) map[string]string {
	var found map[string]string
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok || key == "" || len(values) == 0 {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[strings.ToLower(key)] = values[0]
	}
	return found
}

// Limits of metadata: those of extended attributes in Linux.
const (
	maxMetadataKey = 255 - len("user."+metadataAttr)
	maxMetadata    = 4096 // bytes of all names and values
)

func checkMetadata(metadata map[string]string) error {
	total := 0
	for key, value := range metadata {
		if len(key) > maxMetadataKey {
			return badRequest("invalid metadata: metadata key %q exceeds %d bytes", key, maxMetadataKey)
		}
		if strings.ContainsFunc(key+value, func(c rune) bool { return c < ' ' || c > '~' }) {
			return badRequest("invalid metadata: metadata key %q or its value contains non-printable-ASCII bytes", key)
		}
		total += len("user."+metadataAttr) + len(key) + len(value)
	}
	if total > maxMetadata {
		return badRequest("invalid metadata: total metadata size %d exceeds %d bytes", total, maxMetadata)
	}
	return nil
}

func attrs(metadata map[string]string) map[string]string {
	if len(metadata) == 0 {
		return nil
	}
	all := make(map[string]string, len(metadata))
	for key, value := range metadata {
		all[metadataAttr+key] = value
	}
	return all
}

// compose answers POST /files/compose: several files become one.
func (s *Service) compose(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    *string  `json:"username"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&req)
	switch {
	case err != nil:
		err = badRequest("invalid request body: %w", err)
	case len(req.Sources) == 0:
		err = badRequest("source_paths must not be empty")
	case len(req.Sources) > maxFiles:
		err = badRequest("source_paths has more than %d entries", maxFiles)
	case req.Destination == "":
		err = badRequest("destination is required")
	}
	c := callOf(r.Context())
	if req.Username != nil {
		c.as(*req.Username)
	}
	var target string
	if err == nil {
		target, err = c.join(r.Context(), req.Sources, req.Destination)
	}
	if err != nil {
		fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, newWritten(target, nil))
}

func (c *call) join(ctx context.Context, given []string, destination string) (string, error) {
	target, err := c.path(ctx, destination)
	if err != nil {
		return "", err
	}
	sources := make([]string, len(given))
	for i, name := range given {
		if sources[i], err = c.path(ctx, name); err != nil {
			return "", err
		}
		if sources[i] == target {
			return "", badRequest("source path %q cannot be the same as destination", name)
		}
	}
	_, err = c.host.ComposeFile(ctx, c.id(), target, sources, sandbox.WriteOptions{User: c.user, Parents: true})
	if err == nil || isCode(err, sandbox.NotFound) {
		return target, err
	}
	return "", c.writeError(ctx, target, err)
}
