package archive

import (
	"errors"
	"fmt"
	"io"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// From returns the parts of a stored snapshot.
func From(x *snapshot.Export) Source { return export{x} }

type export struct{ *snapshot.Export }

func (x export) Open(p Part) (io.ReadCloser, error) {
	file := x.State
	switch p.Kind {
	case Root:
		file = x.Root
	case Layer:
		file = x.Layers[p.ref()]
	}
	if file == nil {
		return nil, fmt.Errorf("snapshot %q has no %s", x.Manifest.Tag, p.Name)
	}
	return io.NopCloser(io.NewSectionReader(file, 0, p.Size)), nil
}

// Into returns an import that ends in the store.
func Into(imp *snapshot.Import) Import { return intake{imp} }

type intake struct{ *snapshot.Import }

func (in intake) Has(p Part) bool {
	switch p.Kind {
	case Root:
		return in.HasRoot()
	case Layer:
		return in.HasLayer(p.ref())
	}
	return false
}

func (in intake) Add(p Part, r io.Reader) (err error) {
	switch p.Kind {
	case State:
		err = in.State(r)
	case Root:
		err = in.Root(r)
	case Layer:
		err = in.Layer(p.ref(), r)
	}
	if errors.Is(err, snapshot.ErrMismatch) || errors.Is(err, page.ErrCorrupt) {
		err = bad("%w", err)
	}
	return err
}

// ref returns what a manifest says of a layer.
func (p Part) ref() snapshot.LayerRef { return snapshot.LayerRef{Digest: p.Digest, Size: p.Size} }
