package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// FormatVersion is the version of the pack format, described in
// docs/format/pack.md.
const FormatVersion = 1

// Limits of what a manifest may declare.
const (
	MaxManifest = 1 << 20  // bytes of an encoded manifest
	maxState    = 64 << 20 // bytes of machine state, as in package state
	maxLayers   = 4096     // in both chains together
	maxRoot     = page.MaxLimit * page.Size
)

// envelope is how a manifest travels. The hash is of the snapshot's bytes as
// they stand, so that a manifest which somebody edited is told from one that
// was written like this.
type envelope struct {
	Format   int             `json:"format"`
	SHA256   string          `json:"sha256"`
	Snapshot json.RawMessage `json:"snapshot"`
}

// EncodeManifest returns the manifest as the first member of a pack, and as the
// config of an OCI artifact.
func EncodeManifest(m *snapshot.Manifest) ([]byte, error) {
	if _, err := Parts(m); err != nil {
		return nil, fmt.Errorf("snapshot %q cannot be shipped: %w", m.Tag, err)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding manifest of %q: %w", m.Tag, err)
	}
	sum := sha256.Sum256(text)
	b, err := json.Marshal(envelope{FormatVersion, hex.EncodeToString(sum[:]), text})
	if err != nil {
		return nil, fmt.Errorf("encoding manifest of %q: %w", m.Tag, err)
	}
	if len(b) > MaxManifest {
		return nil, fmt.Errorf("the manifest of %q has %d bytes, more than %d: compact the snapshot first", m.Tag, len(b), MaxManifest)
	}
	return b, nil
}

// DecodeManifest checks an encoded manifest. What it accepts makes sense by
// itself and has [Parts]; whether it tells the truth shows when the parts come.
// Errors wrap ErrBadPack.
func DecodeManifest(b []byte) (*snapshot.Manifest, error) {
	if len(b) > MaxManifest {
		return nil, fmt.Errorf("%w: its manifest has %d bytes, more than %d", ErrBadPack, len(b), MaxManifest)
	}
	var e envelope
	err := json.Unmarshal(b, &e)
	if err == nil {
		err = oneMeaning(json.NewDecoder(bytes.NewReader(b)))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: reading its manifest: %w", ErrBadPack, err)
	}
	if e.Format != FormatVersion {
		return nil, fmt.Errorf("%w: pack format version %d, this forkd reads version %d", ErrBadPack, e.Format, FormatVersion)
	}
	if sum := sha256.Sum256(e.Snapshot); hex.EncodeToString(sum[:]) != e.SHA256 {
		return nil, fmt.Errorf("%w: its manifest does not match its hash", ErrBadPack)
	}
	m := new(snapshot.Manifest)
	if err := json.Unmarshal(e.Snapshot, m); err != nil {
		return nil, fmt.Errorf("%w: reading its manifest: %w", ErrBadPack, err)
	}
	if _, err := Parts(m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadPack, err)
	}
	return m, nil
}

// oneMeaning reads a JSON value in which no object has a field twice, which
// readers take differently. Fields that differ in case are the same ones here.
func oneMeaning(d *json.Decoder) error {
	token, err := d.Token()
	open, nested := token.(json.Delim)
	if err != nil || !nested {
		return err
	}
	seen := make(map[string]bool)
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string)
			folded := strings.ToLower(strings.ToUpper(name))
			if seen[folded] {
				return fmt.Errorf("field %.80q is there twice", name)
			}
			seen[folded] = true
		}
		if err := oneMeaning(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// Kind says what a part is.
type Kind string

// The kinds of parts.
const (
	State Kind = "state" // vCPUs and devices
	Root  Kind = "root"  // the root image
	Layer Kind = "layer" // pages of RAM or of the scratch disk
)

// Part is one of the files that a snapshot is made of.
type Part struct {
	Kind Kind
	Name string // in a pack, with slashes
	Size int64  // in bytes
	// Digest identifies the contents, in hex: of a layer its own digest, of
	// another part SHA-256.
	Digest string
	// Pages is the size of the address space that a layer is of.
	Pages page.Number
}

// layer returns the part that a layer is.
func layer(ref snapshot.LayerRef, pages page.Number) Part {
	return Part{Layer, "layers/" + ref.Digest + ".layer", ref.Size, ref.Digest, pages}
}

// Parts returns what a snapshot consists of, each part once, in the order in
// which a pack has them. The error names the field that makes no sense.
func Parts(m *snapshot.Manifest) ([]Part, error) {
	if err := checkMachine(m); err != nil {
		return nil, err
	}
	parts := []Part{
		{Kind: State, Name: "state.bin", Size: m.State.Size, Digest: m.State.SHA256},
		{Kind: Root, Name: "rootfs.erofs", Size: m.Root.Size, Digest: m.Root.SHA256},
	}
	if n := len(m.Memory.Layers) + len(m.Scratch.Layers); n > maxLayers {
		return nil, fmt.Errorf("%d layers are more than %d", n, maxLayers)
	}
	seen := make(map[string]Part)
	for _, stack := range []snapshot.StackRef{m.Memory, m.Scratch} {
		for _, ref := range stack.Layers {
			p := layer(ref, stack.Pages)
			before, double := seen[p.Digest]
			if double && before != p {
				return nil, fmt.Errorf("layer %.12s is there twice, with different sizes", p.Digest)
			}
			if !double {
				seen[p.Digest] = p
				parts = append(parts, p)
			}
		}
	}
	for _, p := range parts {
		if err := p.check(); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// TotalSize returns the bytes of all parts.
func TotalSize(parts []Part) (n int64) {
	for _, p := range parts {
		n += p.Size // at most 4098 × 1 TiB: no overflow
	}
	return n
}

var hexPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (p Part) check() error {
	if !hexPattern.MatchString(p.Digest) {
		return fmt.Errorf("bad digest %.80q of a %s", p.Digest, p.Kind)
	}
	ok := false
	switch p.Kind {
	case State:
		ok = p.Size > 0 && p.Size <= maxState
	case Root:
		ok = p.Size > 0 && p.Size <= maxRoot && p.Size%page.Size == 0
	case Layer:
		ok = p.Size > 0 && p.Size <= maxLayer(p.Pages) && p.Size%page.Size == 0
	}
	if !ok {
		return fmt.Errorf("bad size %d of %s %.12s", p.Size, p.Kind, p.Digest)
	}
	return nil
}

// maxLayer bounds the size of a layer file of an address space: an index entry
// and a hash on top of each page, and a header.
func maxLayer(pages page.Number) int64 {
	const perPage = page.Size + 4 + sha256.Size
	return int64(pages)*perPage + 2*page.Size
}

// The sizes of machines that exist; an engine offers fewer.
const (
	maxVCPUs     = 1024
	maxMemoryMiB = page.MaxLimit >> (20 - page.Shift)
	maxPauseMS   = 1e9
)

func checkMachine(m *snapshot.Manifest) error {
	switch {
	case m.Format < 1 || m.Format > snapshot.FormatVersion:
		return fmt.Errorf("snapshot format version %d, this forkd reads versions up to %d", m.Format, snapshot.FormatVersion)
	case !snapshot.ValidTag(m.Tag):
		return fmt.Errorf("bad tag %.80q", m.Tag)
	case m.VCPUs < 1 || m.VCPUs > maxVCPUs:
		return fmt.Errorf("bad number of vCPUs, %d", m.VCPUs)
	case m.MemoryMiB < 1 || m.MemoryMiB > maxMemoryMiB:
		return fmt.Errorf("bad memory size of %d MiB", m.MemoryMiB)
	case int64(m.Memory.Pages) != int64(m.MemoryMiB)<<(20-page.Shift):
		return fmt.Errorf("memory of %d pages does not fit a machine of %d MiB", m.Memory.Pages, m.MemoryMiB)
	case m.Scratch.Pages < 1 || m.Scratch.Pages > page.MaxLimit:
		return fmt.Errorf("bad scratch disk of %d pages", m.Scratch.Pages)
	case m.Held < 0:
		return fmt.Errorf("bad number of held processes, %d", m.Held)
	case m.Engine == "":
		return errors.New("it names no engine")
	case !(m.PauseMS >= 0 && m.PauseMS <= maxPauseMS): // nor is it NaN
		return fmt.Errorf("bad pause of %g ms", m.PauseMS)
	case m.RuntimeStarts < 0:
		return fmt.Errorf("bad number of starts of the runtime, %d", m.RuntimeStarts)
	case m.Runtime == "" && m.RuntimePort != 0:
		return fmt.Errorf("port %d of a runtime that there is not", m.RuntimePort)
	case m.ParentTag != "" && !snapshot.ValidTag(m.ParentTag):
		return fmt.Errorf("bad parent tag %.80q", m.ParentTag)
	}
	return checkText(m)
}

// What is shown to people, or compared, is short and has no control characters.
const (
	maxText  = 200
	maxTexts = 1000
)

func checkText(m *snapshot.Manifest) error {
	if len(m.Modules) > maxTexts || len(m.CPUFeatures) > maxTexts {
		return fmt.Errorf("more than %d modules or CPU features", maxTexts)
	}
	fixed := []string{m.Version, m.BranchedFrom, m.Mode, m.Engine, m.ISA, m.Runtime, m.ImageKey}
	for _, s := range slices.Concat(fixed, m.Modules, m.CPUFeatures) {
		if len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("bad text %.80q", s)
		}
	}
	return nil
}
