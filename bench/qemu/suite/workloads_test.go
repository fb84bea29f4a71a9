package suite

import (
	"regexp"
	"testing"
)

func TestWorkloads(t *testing.T) {
	seen := map[string]bool{Boot: true}
	// Names travel in lists with commas on the kernel's command line, and in
	// lines with spaces.
	name := regexp.MustCompile(`^[a-z0-9-]+$`)
	for _, w := range All() {
		if !name.MatchString(w.Name) || seen[w.Name] {
			t.Errorf("name %q is not possible, or double", w.Name)
		}
		seen[w.Name] = true
		if len(w.Run) == 0 || w.Count < 1 {
			t.Errorf("%s runs nothing", w.Name)
		}
		if got, ok := Find(w.Name); !ok || got.Name != w.Name {
			t.Errorf("Find(%q) = %q, %v", w.Name, got.Name, ok)
		}
	}
	if _, ok := Find("no-such"); ok {
		t.Error("Find found a workload that does not exist")
	}
}

func TestTail(t *testing.T) {
	tail := Tail{Limit: 4}
	for _, s := range []string{"ab", "cdefgh", "", "i"} {
		if n, err := tail.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write(%q) = %d, %v", s, n, err)
		}
	}
	if got := string(tail.Text); got != "fghi" {
		t.Errorf("tail is %q, want the last four bytes", got)
	}
}
