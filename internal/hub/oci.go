package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// What an artifact is made of, described in docs/format/hub.md.
const (
	configType types.MediaType = "application/vnd.forkd.snapshot.v1+json"
	partType   types.MediaType = "application/vnd.forkd.snapshot.part.v1+zstd"
	titleKey                   = "org.opencontainers.image.title"
)

const maxArtifact = 4 << 20 // bytes of an artifact's manifest

// registryOptions say how requests to a registry are made: with what the user's
// container tools have stored for it.
func (c *Client) registryOptions() []remote.Option {
	return []remote.Option{
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(c.transport), remote.WithUserAgent(c.opts.UserAgent),
		remote.WithRetryBackoff(remote.Backoff{Duration: c.patience.pause, Factor: 2, Jitter: 0.1, Steps: c.patience.tries, Cap: c.patience.most}),
	}
}

// registryError classifies an error of the library.
func registryError(ref fmt.Stringer, err error) error {
	kind := ErrUnavailable
	var answer *transport.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, archive.ErrBadPack):
		return fmt.Errorf("%s: %w", ref, err)
	case errors.As(err, &answer):
		switch answer.StatusCode {
		case http.StatusNotFound:
			kind = ErrNotFound
		case http.StatusUnauthorized, http.StatusForbidden:
			kind = ErrDenied
		}
	}
	return fmt.Errorf("%s: %w: %w", ref, kind, &oneLine{err})
}

// maxAnswer bounds what an error tells of a registry's own words, in bytes.
const maxAnswer = 200

// oneLine is an error whose text is one short line: what is no registry answers
// with whole pages, and the library quotes them.
type oneLine struct{ err error }

func (e *oneLine) Unwrap() error { return e.err }

func (e *oneLine) Error() string {
	text := e.err.Error()
	if at := strings.IndexAny(text, "<\r\n"); at >= 0 {
		text = strings.TrimRight(text[:at], ": ")
	}
	if len(text) > maxAnswer {
		text = strings.ToValidUTF8(text[:maxAnswer], "") + "…"
	}
	return text
}

// blob is a part of a snapshot, compressed and ready to be sent.
type blob struct {
	*spool
	part  archive.Part
	count *archive.Counter
	seen  int64 // bytes of the part that count has been told of
}

// blob is what the library sends.
var _ v1.Layer = (*blob)(nil)

func (b *blob) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: b.digest()}, nil
}

func (b *blob) Size() (int64, error)                { return b.size, nil }
func (b *blob) MediaType() (types.MediaType, error) { return partType, nil }

// DiffID and Uncompressed are of no use to a registry.
func (b *blob) DiffID() (v1.Hash, error) { return b.Digest() }
func (b *blob) Uncompressed() (io.ReadCloser, error) {
	return nil, errors.New("blobs are sent compressed")
}

// Compressed returns the blob from the beginning, each time it is sent.
func (b *blob) Compressed() (io.ReadCloser, error) {
	b.sent(0)
	return io.NopCloser(&blobReader{b, b.reader(), 0}), nil
}

// sent notes how much of the blob is on the other side, as bytes of the part.
func (b *blob) sent(n int64) {
	now := b.part.Size
	if n < b.size {
		now = int64(float64(b.part.Size) * float64(n) / float64(b.size))
	}
	b.count.Add(now - b.seen)
	b.seen = now
}

func (b *blob) descriptor() v1.Descriptor {
	digest, _ := b.Digest()
	return v1.Descriptor{MediaType: partType, Size: b.size, Digest: digest, Annotations: map[string]string{titleKey: b.part.Name}}
}

type blobReader struct {
	blob *blob
	r    io.Reader
	n    int64
}

func (r *blobReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n += int64(n)
	r.blob.sent(r.n)
	return n, err
}
