package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	e2bRow     = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (yes|no|local) \\| (.*) \\|$")
	e2bTest    = regexp.MustCompile(`(?m)^ *test\((?:'([^']+)'|` + "`([^`]+)`" + `)`)
	e2bPattern = regexp.MustCompile(`\\\$\\\{[^}]*\\\}`)
)

// The compatibility page claims nothing without a test. That it has every method
// of the packages is held by the suite, which sees what they export.
func TestE2BPageNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	names := e2bTestNames(t)
	rows := e2bRow.FindAllStringSubmatch(string(page), -1)
	if len(rows) < 100 {
		t.Fatalf("only %d rows are found", len(rows))
	}
	for _, row := range rows {
		for shown := range strings.SplitSeq(row[3], "; ") {
			file, name, _ := strings.Cut(shown, ": ")
			found := false
			for _, pattern := range names[file] {
				found = found || pattern.MatchString(name)
			}
			if !found {
				t.Errorf("%s is said to be shown by %q, which does not exist", row[1], shown)
			}
		}
	}
}

// e2bSubject is what the tests of a file of the suite are about.
func e2bSubject(file string) string { return strings.TrimSuffix(filepath.Base(file), ".test.mjs") }

// e2bTestNames returns patterns of the names of the suite's tests by subject.
func e2bTestNames(t *testing.T) map[string][]*regexp.Regexp {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(e2bSuite, "*.test.mjs"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no suite in %s: %v", e2bSuite, err)
	}
	names := map[string][]*regexp.Regexp{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		subject := e2bSubject(file)
		for _, m := range e2bTest.FindAllStringSubmatch(string(text), -1) {
			pattern := e2bPattern.ReplaceAllString(regexp.QuoteMeta(m[1]+m[2]), ".+")
			names[subject] = append(names[subject], regexp.MustCompile("^"+pattern+"$"))
		}
	}
	return names
}
