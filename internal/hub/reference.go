package hub

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// Reference says where a snapshot is, outside of the store. One of its fields
// is set.
type Reference struct {
	Path string         // a pack in a local file
	URL  *url.URL       // a pack on a web server, http or https
	Name *Name          // a pack that the hub lists
	OCI  name.Reference // an artifact in an OCI registry
}

// Name is the name of a snapshot on a hub.
type Name struct {
	Owner, Name string
	Version     string // empty: the latest
}

func (n Name) String() string {
	if n.Version == "" {
		return n.path()
	}
	return n.path() + ":" + n.Version
}

func (n Name) path() string { return n.Owner + "/" + n.Name }

const ociScheme = "oci://"

// Names must not be dots alone: they become parts of URLs.
var (
	namePattern = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]{0,63})/([A-Za-z0-9][A-Za-z0-9._-]{0,63})(:([A-Za-z0-9][A-Za-z0-9._-]{0,63}))?$`)
	hasScheme   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)
)

// Parse reads a reference. What looks like a path (it begins with a dot or a
// slash, or ends like a pack) is one, so ./owner/name is a file and owner/name
// is on the hub. The error wraps ErrReference.
func Parse(s string) (Reference, error) {
	switch {
	case strings.HasPrefix(s, ociScheme):
		ref, err := parseOCI(strings.TrimPrefix(s, ociScheme))
		return Reference{OCI: ref}, err
	case strings.HasPrefix(s, "http://"), strings.HasPrefix(s, "https://"):
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" {
			return Reference{}, fmt.Errorf("%w: not a URL of a pack", ErrReference)
		}
		return Reference{URL: u}, nil
	case hasScheme.MatchString(s):
		return Reference{}, fmt.Errorf("%w: %.200q has an unknown scheme; there are http, https and oci", ErrReference, s)
	case strings.ContainsRune(s, 0):
		return Reference{}, fmt.Errorf("%w: %.200q holds a zero byte", ErrReference, s)
	case strings.HasPrefix(s, "/"), strings.HasPrefix(s, "."), strings.HasSuffix(s, archive.Suffix):
		return Reference{Path: s}, nil
	}
	if m := namePattern.FindStringSubmatch(s); m != nil {
		return Reference{Name: &Name{m[1], m[2], m[4]}}, nil
	}
	return Reference{}, fmt.Errorf("%w: %.200q is no owner/name[:version], URL, oci:// reference, or path with a slash in front", ErrReference, s)
}

func parseOCI(s string) (name.Reference, error) {
	// Without a host the library would fill one in; we name no server.
	host, _, ok := strings.Cut(s, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return nil, fmt.Errorf("%w: oci://%.200s names no registry; write oci://host/repository:tag", ErrReference, s)
	}
	ref, err := name.ParseReference(s, name.WithDefaultTag("latest"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	return ref, nil
}
