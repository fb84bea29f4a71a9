package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
)

// FormatVersion is the version of the snapshot format, described in
// docs/format/snapshot.md.
const FormatVersion = 1

const maxManifest = 1 << 20

// Manifest describes a snapshot: what machine it is of, and which files hold
// it.
type Manifest struct {
	Format       int       `json:"format"`
	Tag          string    `json:"tag"`
	CreatedAt    time.Time `json:"created_at"`
	Version      string    `json:"forkd_version"`
	BranchedFrom string    `json:"branched_from,omitempty"`

	Engine    string `json:"engine"`
	ISA       string `json:"isa"`
	VCPUs     int    `json:"vcpus"`
	MemoryMiB int    `json:"memory_mib"`

	// Runtime is the warm runtime's kind, empty if there is none.
	Runtime string   `json:"runtime,omitempty"`
	Modules []string `json:"modules,omitempty"`
	// RuntimePort is the runtime's vsock port.
	RuntimePort uint32 `json:"runtime_port,omitempty"`
	// Held is how many user processes wait in the snapshot to run on. A child
	// of a snapshot that holds some is refreshed at once, not on first contact.
	Held int `json:"held"`

	ImageKey string   `json:"image_key"`
	Root     FileRef  `json:"root"`
	State    FileRef  `json:"state"`
	Memory   StackRef `json:"memory"`
	Scratch  StackRef `json:"scratch"`
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
	m := new(Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotBootable, path, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotBootable, path, err)
	}
	return m, nil
}

func (m *Manifest) check() error {
	if m.Format != FormatVersion {
		return fmt.Errorf("format version %d, this forkd reads version %d", m.Format, FormatVersion)
	}
	if !ValidTag(m.Tag) {
		return fmt.Errorf("bad tag %q", m.Tag)
	}
	for _, s := range []StackRef{m.Memory, m.Scratch} {
		if s.Pages == 0 || s.Pages > page.MaxLimit {
			return fmt.Errorf("bad address space of %d pages", s.Pages)
		}
		for _, l := range s.Layers {
			// Digests become file names.
			if !digestPattern.MatchString(l.Digest) {
				return fmt.Errorf("bad layer digest %q", l.Digest)
			}
		}
	}
	return nil
}
