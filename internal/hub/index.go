package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// indexName is the file that lists a hub's packs, described in
// docs/format/hub.md.
const indexName = "registry.json"

const (
	indexFormat = 1
	maxIndex    = 16 << 20
)

// index is registry.json.
type index struct {
	Format    int              `json:"format"`
	Snapshots map[string]entry `json:"snapshots"` // by owner/name
}

type entry struct {
	Latest   string             `json:"latest"`
	Versions map[string]version `json:"versions"`
}

type version struct {
	URL    string `json:"url"` // relative to that of the index
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

var hexPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseIndex reads an index. Entries are checked when they are used.
func parseIndex(b []byte) (*index, error) {
	x := new(index)
	if err := json.Unmarshal(b, x); err != nil {
		return nil, fmt.Errorf("reading %s: %w", indexName, err)
	}
	if x.Format != indexFormat {
		return nil, fmt.Errorf("%s has format version %d, this forkd reads version %d", indexName, x.Format, indexFormat)
	}
	return x, nil
}

// find returns where a pack is, and what the index says of it.
func (x *index) find(base *url.URL, n Name) (*url.URL, listing, error) {
	e := x.Snapshots[n.path()]
	if n.Version == "" {
		n.Version = e.Latest
	}
	v, ok := e.Versions[n.Version]
	if !ok {
		return nil, listing{}, fmt.Errorf("%s: the hub has no %s: %w", show(base), n, ErrNotFound)
	}
	u, err := base.Parse(v.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || base.Scheme == "https" && u.Scheme != "https" {
		return nil, listing{}, fmt.Errorf("%s: %w: the URL of %s is not one that the hub may name", show(base), ErrUnavailable, n)
	}
	if !hexPattern.MatchString(v.SHA256) || v.Size <= 0 {
		return nil, listing{}, fmt.Errorf("%s: %w: %s is listed without size and sha256", show(base), ErrUnavailable, n)
	}
	return u, listing{v.Size, v.SHA256}, nil
}

// add lists a pack, as the latest.
func (x *index) add(n Name, v version) {
	if x.Snapshots == nil {
		x.Snapshots = make(map[string]entry)
	}
	e := x.Snapshots[n.path()]
	if e.Versions == nil {
		e.Versions = make(map[string]version)
	}
	e.Latest, e.Versions[n.Version] = n.Version, v
	x.Snapshots[n.path()] = e
}

var errNoHub = fmt.Errorf("%w: there is no hub; set FORKD_HUB_URL to where its %s lies, or give a URL", ErrReference, indexName)

func (c *Client) pullName(ctx context.Context, n Name, to archive.Sink, progress Progress) error {
	if c.hub == nil {
		return errNoHub
	}
	g := c.grant(c.hub)
	x, _, err := c.readIndex(ctx, g)
	if err != nil {
		return err
	}
	u, l, err := x.find(c.hub, n)
	if err != nil {
		return err
	}
	return c.pullURL(ctx, u, l, g, to, progress)
}

// readIndex fetches the index and the tag that tells its version. A hub without
// one has an empty index with an empty tag.
func (c *Client) readIndex(ctx context.Context, g grant) (*index, string, error) {
	for n := 1; ; n++ {
		b, tag, err := c.getIndex(ctx, g)
		switch {
		case err == nil:
			x, err := parseIndex(b)
			if err != nil {
				err = fmt.Errorf("%s: %w: %w", show(c.hub), ErrUnavailable, err)
			}
			return x, tag, err
		case errors.Is(err, ErrNotFound):
			return &index{Format: indexFormat}, "", nil
		case !errors.Is(err, ErrUnavailable) || lasting(err, n > 1) || n >= c.patience.tries:
			return nil, "", err
		}
		if err := c.patience.rest(ctx, n); err != nil {
			return nil, "", err
		}
	}
}

func (c *Client) getIndex(ctx context.Context, g grant) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience.idle)
	defer cancel()
	req, err := c.request(ctx, http.MethodGet, c.hub, g, nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, "", failure(c.hub, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, "", refusal(c.hub, resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxIndex+1))
	if err != nil {
		return nil, "", failure(c.hub, err)
	}
	if len(b) > maxIndex {
		return nil, "", fmt.Errorf("%s: %w: it has more than %d bytes", show(c.hub), ErrUnavailable, maxIndex)
	}
	return b, resp.Header.Get("ETag"), nil
}

// pushName sends a pack to its place below the index and lists it.
func (c *Client) pushName(ctx context.Context, n Name, m *snapshot.Manifest, from archive.Source, progress Progress) error {
	switch {
	case c.hub == nil:
		return errNoHub
	case n.Version == "":
		return fmt.Errorf("%w: say which version it is: %s:VERSION", ErrReference, n)
	}
	g := c.grant(c.hub)
	// Looked at before anything is sent; the listing itself is checked again.
	x, _, err := c.readIndex(ctx, g)
	if err != nil {
		return err
	}
	if _, taken := x.Snapshots[n.path()].Versions[n.Version]; taken {
		return fmt.Errorf("%s: %s: %w", show(c.hub), n, ErrExists)
	}
	place := n.path() + "/" + n.Version + archive.Suffix
	made, err := c.pushURL(ctx, c.hub.JoinPath("..", place), g, m, from, progress)
	if err != nil {
		return err
	}
	return c.list(ctx, n, version{place, made.sha256, made.size}, g)
}

// list adds a version to the index. Another client may do so at the same time:
// the index is replaced on condition that it is the one that was read.
func (c *Client) list(ctx context.Context, n Name, v version, g grant) error {
	for try := 1; ; try++ {
		x, tag, err := c.readIndex(ctx, g)
		if err != nil {
			return err
		}
		if have, taken := x.Snapshots[n.path()].Versions[n.Version]; taken && have != v {
			return fmt.Errorf("%s: %s: %w", show(c.hub), n, ErrExists)
		}
		x.add(n, v)
		b, err := json.MarshalIndent(x, "", "  ")
		if err != nil {
			return fmt.Errorf("encoding %s: %w", indexName, err)
		}
		err = c.putIndex(ctx, append(b, '\n'), tag, g)
		if !errors.Is(err, ErrExists) && !errors.Is(err, ErrUnavailable) || try >= c.patience.tries {
			return err
		}
		if err := c.patience.rest(ctx, try); err != nil {
			return err
		}
	}
}

func (c *Client) putIndex(ctx context.Context, b []byte, tag string, g grant) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience.idle)
	defer cancel()
	req, err := c.request(ctx, http.MethodPut, c.hub, g, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if tag == "" {
		req.Header.Set("If-None-Match", "*")
	} else {
		req.Header.Set("If-Match", tag)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return failure(c.hub, err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return refusal(c.hub, resp.StatusCode)
	}
	return nil
}
