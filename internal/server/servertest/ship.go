package servertest

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// packMagic begins the fake's packs; the rest is the tag.
const packMagic = "fake pack of "

// Pack writes the tag. A snapshot named "damaged" breaks off.
func (f *Fake) Pack(_ context.Context, tag string, w io.Writer, progress func(sandbox.Progress)) error {
	if _, err := f.Snapshot(tag); err != nil {
		return err
	}
	progress(sandbox.Progress{Step: "pack", Done: 1, Total: 1})
	if _, err := io.WriteString(w, packMagic); err != nil {
		return err
	}
	if tag == "damaged" {
		return fault(sandbox.NotBootable, "", "snapshot %q is damaged", tag)
	}
	_, err := io.WriteString(w, tag)
	return err
}

// Unpack reads what Pack has written.
func (f *Fake) Unpack(_ context.Context, r io.Reader, tag string, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
	head := make([]byte, len(packMagic))
	if _, err := io.ReadFull(r, head); err != nil || !bytes.Equal(head, []byte(packMagic)) {
		return nil, fault(sandbox.NotBootable, "make it again with `forkd pack`", "this is no snapshot pack")
	}
	name, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if tag == "" {
		tag = string(name)
	}
	progress(sandbox.Progress{Step: "unpack", Done: 1, Total: 1})
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.add(tag, "", "")
	if err != nil {
		return nil, err
	}
	return f.info(s), nil
}

// Push keeps a pack under the reference, in a directory that all pulls read.
func (f *Fake) Push(ctx context.Context, tag, reference string, _ sandbox.ShipOptions, progress func(sandbox.Progress)) error {
	progress(sandbox.Progress{Step: "send", Message: "sending " + tag, Done: 1, Total: 2})
	var pack bytes.Buffer
	if err := f.Pack(ctx, tag, &pack, progress); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(f.Dir, "hub"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(f.hubFile(reference), pack.Bytes(), 0o600)
}

// Pull reads what Push has kept.
func (f *Fake) Pull(ctx context.Context, reference, tag string, _ sandbox.ShipOptions, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
	progress(sandbox.Progress{Step: "fetch", Message: "fetching " + reference, Done: 1, Total: 2})
	pack, err := os.ReadFile(f.hubFile(reference))
	if err != nil {
		return nil, fault(sandbox.NotFound, "check the reference", "there is no %s", reference)
	}
	return f.Unpack(ctx, bytes.NewReader(pack), tag, progress)
}

func (f *Fake) hubFile(reference string) string {
	return filepath.Join(f.Dir, "hub", strings.NewReplacer("/", "_", ":", "_").Replace(reference))
}
