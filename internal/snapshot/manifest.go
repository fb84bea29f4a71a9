package snapshot

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
)

// FormatVersion is the version of the snapshot format that is written, described
// in docs/format/snapshot.md. Those before it are read.
const FormatVersion = 2

const maxManifest = 1 << 20

// Manifest describes a snapshot: what machine it is of, and which files hold
// it.
type Manifest struct {
	Format    int       `json:"format"`
	Tag       string    `json:"tag"`
	CreatedAt time.Time `json:"created_at"`
	Version   string    `json:"forkd_version"`

	// ParentTag is the snapshot that the machine descends from, and
	// BranchedFrom the sandbox that it was taken of; empty for a fresh parent.
	ParentTag    string `json:"parent_tag,omitempty"`
	BranchedFrom string `json:"branched_from,omitempty"`
	// Mode is how it was taken: full, diff or live; empty for a fresh parent.
	Mode string `json:"mode,omitempty"`
	// PauseMS is how long user code in the source stood still, in milliseconds.
	PauseMS float64 `json:"pause_ms,omitempty"`

	Engine    string `json:"engine"`
	ISA       string `json:"isa"`
	VCPUs     int    `json:"vcpus"`
	MemoryMiB int    `json:"memory_mib"`
	// CPUFeatures are the extensions of the ISA that the guest may use.
	CPUFeatures []string `json:"cpu_features,omitempty"`

	// Runtime is the warm runtime's kind, empty if there is none.
	Runtime string   `json:"runtime,omitempty"`
	Modules []string `json:"modules,omitempty"`
	// RuntimePort is the runtime's vsock port.
	RuntimePort uint32 `json:"runtime_port,omitempty"`
	// RuntimeStarts is how often the runtime was started, 0 for once.
	RuntimeStarts int `json:"runtime_starts,omitempty"`
	// Held is how many user processes wait in the snapshot to run on. A child
	// of a snapshot that holds some is refreshed at once, not on first contact.
	Held int `json:"held"`

	ImageKey string   `json:"image_key"`
	Root     FileRef  `json:"root"`
	State    FileRef  `json:"state"`
	Memory   StackRef `json:"memory"`
	Scratch  StackRef `json:"scratch"`
}

// layers returns the layers of all address spaces.
func (m *Manifest) layers() []LayerRef { return slices.Concat(m.Memory.Layers, m.Scratch.Layers) }

// ContentHash identifies the RAM of the snapshot: the digest of its topmost
// layer. It is empty while the snapshot is being written.
func (m *Manifest) ContentHash() string {
	if n := len(m.Memory.Layers); n > 0 {
		return m.Memory.Layers[n-1].Digest
	}
	return ""
}

// MachineHash identifies all that a child begins as: the layers of RAM and disk, from the bottom up, and the state of
// the rest. It is empty while the snapshot is being written.
func (m *Manifest) MachineHash() string {
	if m.ContentHash() == "" {
		return ""
	}
	text, err := json.Marshal([]any{m.Engine, m.ISA, m.VCPUs, m.MemoryMiB, m.Root, m.State, m.Memory, m.Scratch})
	if err != nil {
		return "" // it holds nothing that could fail
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// FileRef names contents by size and hash.
type FileRef struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// StackRef names the layers of one address space, bottom first.
type StackRef struct {
	Pages  page.Number `json:"pages"` // in the address space
	Layers []LayerRef  `json:"layers"`
}

// LayerRef names one layer file.
type LayerRef struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Bytes returns the size of the files that hold the stack.
func (s StackRef) Bytes() (n int64) {
	for _, l := range s.Layers {
		n += l.Size
	}
	return n
}

// ErrNotBootable reports a snapshot whose files are missing, damaged, or of a
// format that this forkd does not read.
var ErrNotBootable = errors.New("snapshot is not bootable")

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidTag reports whether tag may name a snapshot.
func ValidTag(tag string) bool { return tagPattern.MatchString(tag) }

var digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readManifest reads dir's manifest and checks that it makes sense by itself.
func readManifest(dir string) (*Manifest, error) {
	path := filepath.Join(dir, manifestFile)
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	if st.Size() > maxManifest {
		return nil, fmt.Errorf("%w: %s is too large for a manifest", ErrNotBootable, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	m, err := ParseManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotBootable, path, err)
	}
	return m, nil
}

// ParseManifest decodes a manifest and checks that it makes sense by itself.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > maxManifest {
		return nil, fmt.Errorf("%d bytes, more than the %d allowed", len(b), maxManifest)
	}
	m := new(Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	return m, nil
}

// Check refuses a manifest that does not make sense by itself.
func (m *Manifest) Check() error {
	if m.Format < 1 || m.Format > FormatVersion {
		return fmt.Errorf("format version %d, this forkd reads versions 1 to %d", m.Format, FormatVersion)
	}
	if !ValidTag(m.Tag) {
		return fmt.Errorf("bad tag %q", m.Tag)
	}
	if m.ParentTag != "" && !ValidTag(m.ParentTag) {
		return fmt.Errorf("bad parent tag %q", m.ParentTag)
	}
	for _, f := range []FileRef{m.Root, m.State} {
		if f.Size < 0 || !digestPattern.MatchString(f.SHA256) {
			return fmt.Errorf("bad file reference of %d bytes with hash %q", f.Size, f.SHA256)
		}
	}
	for _, s := range []StackRef{m.Memory, m.Scratch} {
		if s.Pages == 0 || s.Pages > page.MaxLimit {
			return fmt.Errorf("bad address space of %d pages", s.Pages)
		}
		if len(s.Layers) > maxLayers {
			return fmt.Errorf("%d layers, more than the %d allowed", len(s.Layers), maxLayers)
		}
		for _, l := range s.Layers {
			// Digests become file names.
			if l.Size < 0 || !digestPattern.MatchString(l.Digest) {
				return fmt.Errorf("bad layer reference of %d bytes with digest %q", l.Size, l.Digest)
			}
		}
	}
	return nil
}
