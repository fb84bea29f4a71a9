package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listing returns the names in a directory.
func listing(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A part takes its place whole, whether something is there or not, and with a name of its own
// until then as without.
func TestPartTakesItsPlace(t *testing.T) {
	for name, begin := range map[string]func(string) (*part, error){"any": newPart, "named": newNamedPart} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, "file")
			for _, text := range []string{"first", "second"} {
				before := listing(t, dir)
				p, err := begin(to)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.WriteString(text); err != nil {
					t.Fatal(err)
				}
				if p.at == "" && !slices.Equal(listing(t, dir), before) {
					t.Errorf("a part without a name lies there: %q", listing(t, dir))
				}
				if err := p.commit(0o640); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(to); err != nil || string(got) != text {
					t.Errorf("%q, %v; want %q", got, err, text)
				}
				if s, err := os.Stat(to); err != nil || s.Mode() != 0o640 {
					t.Errorf("%v, %v", s.Mode(), err)
				}
				if got := listing(t, dir); len(got) != 1 {
					t.Errorf("left behind: %q", got)
				}
			}
			p, err := begin(to)
			if err != nil {
				t.Fatal(err)
			}
			p.discard()
			if got := listing(t, dir); len(got) != 1 {
				t.Errorf("left behind: %q", got)
			}
		})
	}
}

// What a process leaves that is killed goes with the next part in that directory; what another
// one is writing stays.
func TestStalePartsGo(t *testing.T) {
	dir := t.TempDir()
	killed, err := newNamedPart(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	killed.Close() // as the kernel does
	alive, err := newNamedPart(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".forkd-notes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := newPart(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer next.discard()
	got := listing(t, dir)
	if slices.Contains(got, filepath.Base(killed.at)) || !slices.Contains(got, filepath.Base(alive.at)) || !slices.Contains(got, ".forkd-notes") {
		t.Errorf("there are %q", got)
	}
	if err := alive.commit(0o600); err != nil {
		t.Error(err)
	}
}

// What goes wrong is told of the file that somebody has named.
func TestPartErrors(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "is", "a", "directory")
	if _, err := newPart(to); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), ".part") {
		t.Errorf("error is %v", err)
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, begin := range []func(string) (*part, error){newPart, newNamedPart} {
		p, err := begin(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.commit(0o600); err == nil || !strings.Contains(err.Error(), to+":") || strings.Contains(err.Error(), ".part") {
			t.Errorf("error is %v", err)
		}
		if got := listing(t, filepath.Dir(to)); len(got) != 1 {
			t.Errorf("left behind: %q", got)
		}
	}
}
