package api_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestGeneratedFilesAreFresh regenerates everything that comes from
// openapi.yaml and compares.
func TestGeneratedFilesAreFresh(t *testing.T) {
	spec, err := filepath.Abs("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	outputLine := regexp.MustCompile(`(?m)^output: (.*)$`)
	for _, config := range []string{
		"models.cfg.yaml",
		"../internal/server/routes.cfg.yaml",
		"../client/internal/rest/rest.cfg.yaml",
	} {
		t.Run(filepath.Base(config), func(t *testing.T) {
			text, err := os.ReadFile(config)
			if err != nil {
				t.Fatal(err)
			}
			m := outputLine.FindSubmatch(text)
			if m == nil {
				t.Fatalf("%s names no output", config)
			}
			dir := t.TempDir()
			fresh := filepath.Join(dir, "fresh.go")
			moved := filepath.Join(dir, "cfg.yaml")
			text = outputLine.ReplaceAll(text, []byte("output: "+fresh))
			if err := os.WriteFile(moved, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("go", "tool", "oapi-codegen", "-config", moved, spec).CombinedOutput(); err != nil {
				t.Fatalf("generator: %v\n%s", err, out)
			}
			want, err := os.ReadFile(fresh)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(filepath.Dir(config), string(m[1]))
			got, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is older than openapi.yaml: run make generate", name)
			}
		})
	}
}
