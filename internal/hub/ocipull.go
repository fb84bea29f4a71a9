package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// pullOCI takes in an artifact: its config, which is our manifest, then the
// parts that are not there yet.
func (c *Client) pullOCI(ctx context.Context, ref name.Reference, to archive.Sink, progress Progress) error {
	p := &ociPull{client: c, ref: ref}
	var err error
	if p.puller, err = remote.NewPuller(c.registryOptions()...); err != nil {
		return registryError(ref, err)
	}
	m, err := p.manifest(ctx)
	if err != nil {
		return registryError(ref, err)
	}
	parts, err := p.parts(m)
	if err != nil {
		return registryError(ref, err)
	}
	imp, err := to(m)
	if err != nil {
		return err
	}
	count := archive.NewCounter(progress.of(Fetching), parts)
	for i, part := range parts {
		if imp.Has(part) {
			count.Add(part.Size)
			continue
		}
		if err := p.part(ctx, part, p.artifact.Layers[i], imp, count); err != nil {
			err = fmt.Errorf("fetching %s of %s: %w", part.Name, ref, err)
			return errors.Join(err, imp.Abort())
		}
	}
	return imp.Commit()
}

type ociPull struct {
	client   *Client
	puller   *remote.Puller
	ref      name.Reference
	artifact v1.Manifest
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{archive.ErrBadPack}, args...)...)
}

// manifest fetches the artifact's manifest and config.
func (p *ociPull) manifest(ctx context.Context) (*snapshot.Manifest, error) {
	got, err := p.puller.Get(ctx, p.ref)
	if err != nil {
		return nil, err
	}
	if got.MediaType != types.OCIManifestSchema1 || len(got.Manifest) > maxArtifact {
		return nil, bad("it is %.100q and no snapshot", got.MediaType)
	}
	artifact, err := v1.ParseManifest(bytes.NewReader(got.Manifest))
	if err != nil {
		return nil, bad("reading its artifact manifest: %w", err)
	}
	p.artifact = *artifact
	if artifact.Config.MediaType != configType {
		return nil, bad("it is a %.100q and no snapshot", artifact.Config.MediaType)
	}
	r, err := p.open(ctx, artifact.Config)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, archive.MaxManifest+1))
	if err != nil {
		return nil, err
	}
	return archive.DecodeManifest(text)
}

// parts returns the parts of the snapshot after checking that the artifact's
// blobs are these.
func (p *ociPull) parts(m *snapshot.Manifest) ([]archive.Part, error) {
	parts, err := archive.Parts(m)
	if err != nil {
		return nil, err
	}
	if len(p.artifact.Layers) != len(parts) {
		return nil, bad("it has %d blobs, its manifest lists %d parts", len(p.artifact.Layers), len(parts))
	}
	for i, d := range p.artifact.Layers {
		switch {
		case d.Annotations[titleKey] != parts[i].Name:
			return nil, bad("it has %.80q where %s belongs", d.Annotations[titleKey], parts[i].Name)
		case d.MediaType != partType:
			return nil, bad("%s is a %.80q", parts[i].Name, d.MediaType)
		}
	}
	return parts, nil
}

// open returns the bytes of a blob. At the end they fail if their hash is wrong.
func (p *ociPull) open(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	blob, err := p.puller.Layer(ctx, p.ref.Context().Digest(d.Digest.String()))
	if err != nil {
		return nil, err
	}
	return blob.Compressed()
}

// part fetches one part, again from its beginning if the connection breaks.
func (p *ociPull) part(ctx context.Context, part archive.Part, d v1.Descriptor, imp archive.Import, count *archive.Counter) error {
	for n := 1; ; n++ {
		taken := &partReader{limit: part.Size, count: count}
		err := p.partOnce(ctx, part, d, imp, taken)
		if err == nil {
			return nil
		}
		count.Add(-taken.n)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case taken.broken == nil || n >= p.client.patience.tries || lasting(err, true):
			return err
		}
		if err := p.client.patience.rest(ctx, n); err != nil {
			return err
		}
	}
}

func (p *ociPull) partOnce(ctx context.Context, part archive.Part, d v1.Descriptor, imp archive.Import, taken *partReader) error {
	body, err := p.open(ctx, d)
	if err != nil {
		err = registryError(p.ref, err)
		if errors.Is(err, ErrUnavailable) {
			taken.broken = err
		}
		return err
	}
	defer body.Close()
	source := &brokenReader{r: body}
	z, err := archive.NewDecompressor(source)
	if err != nil {
		return fmt.Errorf("starting decompression: %w", err)
	}
	defer z.Close()
	taken.r = z
	err = imp.Add(part, taken)
	if err == nil {
		_, err = io.Copy(io.Discard, taken)
	}
	if source.err != nil {
		taken.broken = source.err
		return registryError(p.ref, source.err)
	}
	if taken.err != nil {
		return bad("unpacking: %w", taken.err)
	}
	if err == nil && taken.n != part.Size {
		err = bad("it unpacks to %d bytes, its manifest says %d", taken.n, part.Size)
	}
	return err
}

// partReader reads an unpacked part and stops at what was declared.
type partReader struct {
	r      io.Reader
	n      int64
	limit  int64
	count  *archive.Counter
	err    error // what unpacking failed with
	broken error // what the connection failed with
}

func (t *partReader) Read(b []byte) (int, error) {
	if len(b) > 0 && t.n == t.limit {
		b = b[:1] // to see whether this is the end
	}
	n, err := t.r.Read(b[:min(int64(len(b)), max(t.limit-t.n, 1))])
	if t.n+int64(n) > t.limit {
		n, err = 0, fmt.Errorf("more than the %d bytes that were declared", t.limit)
	}
	t.n += int64(n)
	t.count.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	return n, err
}

// brokenReader remembers what a connection failed with.
type brokenReader struct {
	r   io.Reader
	err error
}

func (b *brokenReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}
