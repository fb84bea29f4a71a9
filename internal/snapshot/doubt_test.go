package snapshot

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/page"
)

// claims is a cut that another process says something of.
type claims struct{ limits, stacks page.Number }

func (c claims) Limits() (memory, scratch page.Number) { return c.limits, c.limits }
func (claims) Layers() (int, []page.Digest)            { return 0, nil }
func (c claims) Stacks(context.Context) (memory, scratch *page.Stack, err error) {
	return page.NewStack(c.stacks), page.NewStack(c.stacks), nil
}
func (claims) Bases() (memory, scratch int) { return 0, 0 }
func (claims) Written([]Written)            {}
func (claims) Retain()                      {}
func (claims) Release()                     {}

// TestWhatCannotBeReadIsNotWritten: whatever a cut is said to be, no snapshot comes of it
// that could not be opened, because of which nothing would ever be swept again.
func TestWhatCannotBeReadIsNotWritten(t *testing.T) {
	home := t.TempDir()
	s, err := OpenStore(home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(root, bytes.Repeat([]byte("r"), page.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), Manifest{Tag: "good"}, Contents{Cut: claims{8, 8}, Root: root}); err != nil {
		t.Fatal(err)
	}
	good, err := s.Open("good")
	if err != nil {
		t.Fatal(err)
	}
	defer good.Release()
	none := page.NewStack(1)
	defer none.Release()
	for what, c := range map[string]struct {
		contents Contents
		want     string
	}{
		"no pages":        {Contents{Cut: claims{0, 8}, Base: good}, "0 pages"},
		"none in the end": {Contents{Cut: claims{8, 0}, Base: good}, "0 pages"},
		"too many":        {Contents{Cut: claims{page.MaxLimit + 1, 8}, Base: good}, "pages"},
		"no root image":   {Contents{Cut: claims{8, 8}, Base: &Snapshot{Manifest: good.Manifest, Root: none}}, "0 layers"},
		"an unknown one":  {Contents{Cut: claims{8, 8}, Base: &Snapshot{Manifest: new(Manifest), Root: good.Root}}, "hash"},
	} {
		if err := s.Create(t.Context(), Manifest{Tag: "bad"}, c.contents); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if s.Exists("bad") {
			t.Errorf("%s: it is there", what)
		}
	}
	garbage := s.layerPath(strings.Repeat("0", 64))
	if err := os.WriteFile(garbage, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.files.Lock()
	defer s.files.Unlock()
	if err := s.sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(garbage); err == nil {
		t.Error("nothing is swept any more")
	}
}
