package page

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// entries yields pages by number; a stamp of 0 is a hole.
func entries(limit Number, stamps map[Number]uint64) iter.Seq2[Number, *Page] {
	return func(yield func(Number, *Page) bool) {
		for n := range limit {
			v, ok := stamps[n]
			if !ok {
				continue
			}
			var p *Page
			if v != 0 {
				p = stamped(v)
			}
			if !yield(n, p) {
				return
			}
		}
	}
}

// goldens are layers whose files must stay as they are for as long as the
// format has its version.
var goldens = []struct {
	name   string
	limit  Number
	stamps map[Number]uint64
}{
	{"v1-empty", 16384, nil},
	{"v1-pages", 1024, map[Number]uint64{0: 0x11, 1: 0, 3: 0x22, 512: 0, 1023: 0x33}},
	{"v1-holes", 3, map[Number]uint64{0: 0, 2: 0}},
}

func TestGoldenLayers(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			golden := filepath.Join("testdata", g.name+".layer")
			path, digest := writeFile(t, g.limit, entries(g.limit, g.stamps))
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the file that is written differs from %s", golden)
			}
			if !bytes.Equal(digest[:], want[32:64]) {
				t.Errorf("digest is %v, the file says %x", digest, want[32:64])
			}
			l, err := OpenLayer(golden)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			checkLayer(t, l, g.limit, g.stamps)
			if l.Digest() != digest {
				t.Errorf("opened layer has digest %v, written one %v", l.Digest(), digest)
			}
		})
	}
}

func checkLayer(t *testing.T, l *Layer, limit Number, stamps map[Number]uint64) {
	t.Helper()
	if l.Limit() != limit || l.Len() != len(stamps) {
		t.Errorf("limit %d, %d numbers; want %d, %d", l.Limit(), l.Len(), limit, len(stamps))
	}
	for n := range limit {
		v, want := stamps[n]
		p, ok := l.Get(n)
		switch {
		case ok != want:
			t.Errorf("layer holds page %d: %v, want %v", n, ok, want)
		case ok && (p == nil) != (v == 0):
			t.Errorf("page %d is a hole: %v", n, p == nil)
		case p != nil && *p != *stamped(v):
			t.Errorf("page %d has wrong contents", n)
		}
	}
}

// Several blocks, with a last one that is not full.
func TestLayerOfManyBlocks(t *testing.T) {
	const limit = 5000
	stamps := map[Number]uint64{}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 900 {
		stamps[Number(rng.IntN(limit))] = rng.Uint64N(4)
	}
	path, _ := writeFile(t, limit, entries(limit, stamps))
	l, err := OpenLayer(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	checkLayer(t, l, limit, stamps)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	checkLayer(t, l, limit, stamps) // an unlinked file stays mapped
	if err := l.Intact(); err != nil {
		t.Errorf("unlinked file: %v", err)
	}
}

func TestWriteLayerRefuses(t *testing.T) {
	p := stamped(1)
	for name, numbers := range map[string][]Number{
		"descending":      {5, 4},
		"double":          {5, 5},
		"beyond":          {10},
		"double and last": {9, 9},
	} {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = WriteLayer(f, 10, func(yield func(Number, *Page) bool) {
			for _, n := range numbers {
				if !yield(n, p) {
					return
				}
			}
		})
		if err == nil {
			t.Errorf("%s: written without an error", name)
		}
		f.Close()
		if _, err = WriteLayer(f, 10, entries(10, nil)); err == nil {
			t.Errorf("%s: writing to a closed file succeeded", name)
		}
	}
}

// The description must be of the version that is written.
func TestFormatIsDescribed(t *testing.T) {
	b, err := os.ReadFile("../../docs/format/layer.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("# Layer format, version %d\n", fileVersion),
		fmt.Sprintf("| 0 | %d | magic | the bytes `%s` |", len(fileMagic), fileMagic),
		fmt.Sprintf("| 8 | 4 | version | %d |", fileVersion),
		fmt.Sprintf("| 12 | 4 | page size | %d |", Size),
		fmt.Sprintf("| %d | %d | digest |", digestAt, sha256.Size),
		fmt.Sprintf("| 0 | %d | header |", headerSize),
		fmt.Sprintf("A block is %d consecutive stored pages", blockPages),
		fmt.Sprintf("at most 2^%d ", bits.Len(MaxLimit)-1),
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/format/layer.md lacks %q", want)
		}
	}
}
