package launch

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKept(t *testing.T) {
	for _, c := range []struct {
		file       string
		left, kept bool
	}{
		{"", false, false},
		{"sandboxes/sb1.json", false, true},
		{"sandboxes/sb1.json.tmp", false, false},
		{"cells/1.json", true, true},
	} {
		home := t.TempDir()
		if c.file != "" {
			path := filepath.Join(home, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if left, kept := Left(home), Kept(home); left != c.left || kept != c.kept {
			t.Errorf("%q: left %v, kept %v", c.file, left, kept)
		}
	}
}
