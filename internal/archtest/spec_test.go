package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSpecificationNamesRealTests keeps the documents true that say which test keeps
// which promise: every test that they name exists.
func TestSpecificationNamesRealTests(t *testing.T) {
	root := filepath.Join("..", "..")
	cmd := exec.Command("git", "ls-files", "*_test.go")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Skipf("the sources are not in a git checkout: %v", err)
	}
	var tests strings.Builder
	for name := range strings.FieldsSeq(string(list)) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // removed and not yet committed
		}
		tests.Write(b)
	}
	for _, document := range []string{"SPECIFICATION.md", "docs/threat-model.md"} {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\.((?:Test|Fuzz)[A-Za-z0-9]+)`).FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(tests.String(), "func "+m[1]+"(") {
				t.Errorf("%s names %s, which does not exist", document, m[1])
			}
		}
	}
}

// TestLinks checks that what the documents link to exists.
func TestLinks(t *testing.T) {
	root := filepath.Join("..", "..")
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	formats, err := filepath.Glob(filepath.Join(root, "docs", "format", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	readmes, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, doc := range append(append(docs, formats...), readmes...) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}
