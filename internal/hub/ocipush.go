package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// pushOCI sends a snapshot as an artifact: blobs that the registry lacks, and
// last the manifest that names them.
func (c *Client) pushOCI(ctx context.Context, ref name.Reference, m *snapshot.Manifest, from archive.Source, progress Progress) error {
	if _, ok := ref.(name.Tag); !ok {
		return fmt.Errorf("%w: %s is a digest; a snapshot is pushed to a tag", ErrReference, ref)
	}
	config, err := archive.EncodeManifest(m)
	if err != nil {
		return err
	}
	parts, err := archive.Parts(m)
	if err != nil {
		return err
	}
	to, err := remote.NewPusher(c.registryOptions()...)
	if err != nil {
		return registryError(ref, err)
	}
	head := static.NewLayer(config, configType)
	if err := to.Upload(ctx, ref.Context(), head); err != nil {
		return registryError(ref, err)
	}
	digest, err := head.Digest()
	if err != nil {
		return fmt.Errorf("hashing manifest of %q: %w", m.Tag, err)
	}
	artifact := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: configType, Size: int64(len(config)), Digest: digest},
	}
	count := archive.NewCounter(progress.of(Sending), parts)
	for _, p := range parts {
		d, err := c.pushPart(ctx, to, ref, p, from, count)
		if err != nil {
			return err
		}
		artifact.Layers = append(artifact.Layers, d)
	}
	text, err := json.Marshal(artifact)
	if err != nil {
		return fmt.Errorf("encoding artifact: %w", err)
	}
	if err := to.Put(ctx, ref, rawManifest(text)); err != nil {
		return registryError(ref, err)
	}
	return nil
}

// pushPart compresses a part and sends it, unless the registry has it.
func (c *Client) pushPart(ctx context.Context, to *remote.Pusher, ref name.Reference, p archive.Part, from archive.Source, count *archive.Counter) (v1.Descriptor, error) {
	s, err := newSpool(c.opts.Temp, func(w io.Writer) error { return compressPart(ctx, w, p, from) })
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("compressing %s: %w", p.Name, err)
	}
	defer s.close()
	b := &blob{spool: s, part: p, count: count}
	if err := to.Upload(ctx, ref.Context(), b); err != nil {
		return v1.Descriptor{}, fmt.Errorf("sending %s: %w", p.Name, registryError(ref, err))
	}
	b.sent(b.size)
	return b.descriptor(), nil
}

func compressPart(ctx context.Context, w io.Writer, p archive.Part, from archive.Source) error {
	r, err := from.Open(p)
	if err != nil {
		return err
	}
	defer r.Close()
	z, err := archive.NewCompressor(w)
	if err != nil {
		return err
	}
	none := archive.NewCounter(nil, nil)
	n, err := io.Copy(z, none.Reader(ctx, io.LimitReader(r, p.Size)))
	if err == nil && n != p.Size {
		err = fmt.Errorf("it has %d bytes, should have %d", n, p.Size)
	}
	if err != nil {
		z.Reset(nil)
		return err
	}
	return errors.Join(z.Close(), ctx.Err())
}

// rawManifest is an encoded artifact manifest.
type rawManifest []byte

func (m rawManifest) RawManifest() ([]byte, error)        { return m, nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
