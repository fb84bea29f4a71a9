package debian

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// packages makes the text of a package list from lines of "name version; Field:
// value; ...".
func packages(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		head, rest, _ := strings.Cut(line, ";")
		name, version, _ := strings.Cut(head, " ")
		fmt.Fprintf(&b, "Package: %s\nVersion: %s\nArchitecture: riscv64\nFilename: pool/%s.deb\nSize: 1\nSHA256: %064d\n", name, version, name, 0)
		for field := range strings.SplitSeq(rest, ";") {
			if field = strings.TrimSpace(field); field != "" {
				b.WriteString(field + "\n")
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestResolve(t *testing.T) {
	for _, test := range []struct {
		name  string
		list  []string
		names string
		want  string // names in order; or what the error says, after "!"
	}{
		{"dependencies first", []string{"a 1; Depends: b, c (>= 1)", "b 1; Pre-Depends: c", "c 1"}, "a", "c b a"},
		{"cycle", []string{"a 1; Depends: b", "b 1; Depends: a"}, "a", "b a"},
		{"first alternative", []string{"a 1; Depends: b | c", "b 1", "c 1"}, "a", "b a"},
		{"alternative that is there already", []string{"a 1; Depends: b | c", "b 1", "c 1"}, "a c", "c a"},
		{"alternative that exists", []string{"a 1; Depends: gone | c", "c 1"}, "a", "c a"},
		{"alternative chosen later by name", []string{"a 1; Depends: b | c", "b 1", "c 1"}, "c a", "c a"},
		{"virtual", []string{"a 1; Depends: awk", "mawk 1; Provides: awk", "gawk 1; Provides: awk"}, "a", "gawk a"},
		{"virtual by priority", []string{"a 1; Depends: awk", "mawk 1; Provides: awk; Priority: required", "gawk 1; Provides: awk; Priority: optional"}, "a", "mawk a"},
		{"virtual that is there already", []string{"a 1; Depends: awk", "mawk 1; Provides: awk", "gawk 1; Provides: awk"}, "mawk a", "mawk a"},
		{"name that is part of another's", []string{"a 1; Depends: awk", "hawk 1; Provides: awkward"}, "a", "!a 1 needs awk"},
		{"versioned virtual", []string{"a 1; Depends: v (>= 2)", "p 1; Provides: v (= 1)", "q 1; Provides: v (= 2)", "r 1; Provides: v"}, "a", "q a"},
		{"qualifier", []string{"a 1; Depends: python3:any (>= 3)", "python3 3.1"}, "a", "python3 a"},
		{"newest version", []string{"a 1", "a 10", "a 9"}, "a", "a"},
		{"version too old", []string{"a 1; Depends: b (>= 2)", "b 1"}, "a", "!needs b (>= 2)"},
		{"epoch and tilde", []string{"a 1; Depends: b (>= 1:1.0~rc1), c (<< 2)", "b 1:1.0~rc2", "c 2~1"}, "a", "b c a"},
		{"equal", []string{"a 1; Depends: b (= 1-1)", "b 1-1+b1"}, "a", "!needs b (= 1-1)"},
		{"unknown name", []string{"a 1"}, "nothing", `!no package "nothing"`},
		{"conflict", []string{"a 1; Conflicts: b", "b 1"}, "a b", "!exclude each other"},
		{"breaks an older one", []string{"a 1; Breaks: b (<< 2)", "b 1"}, "a b", "!exclude each other"},
		{"breaks another version", []string{"a 1; Breaks: b (<< 1)", "b 1"}, "a b", "a b"},
		{"conflicts with what it provides itself", []string{"a 1; Provides: mta; Conflicts: mta"}, "a", "a"},
		{"conflicts by a virtual name", []string{"a 1; Provides: mta; Conflicts: mta", "b 1; Provides: mta"}, "a b", "!exclude each other"},
		{"malformed relation", []string{"a 1; Depends: b (>= "}, "a", "!relations of a 1"},
		{"twice", []string{"a 1"}, "a a", "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x, err := parsePackages(packages(test.list...))
			if err != nil {
				t.Fatal(err)
			}
			got, err := x.Resolve(strings.Fields(test.names))
			if want, fails := strings.CutPrefix(test.want, "!"); fails {
				if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrUnresolved) && !errors.Is(err, ErrFormat) {
					t.Fatalf("error %v does not say %q", err, want)
				}
				return
			}
			var names []string
			for _, p := range got {
				names = append(names, p.Name)
			}
			if err != nil || strings.Join(names, " ") != test.want {
				t.Fatalf("got %v, %v, want %s", names, err, test.want)
			}
			if test.name == "newest version" && got[0].Version != "10" {
				t.Errorf("chose %s", got[0])
			}
		})
	}
}

func TestKernel(t *testing.T) {
	x, err := parsePackages(packages("linux-image-riscv64 1; Depends: linux-base, linux-image-6.1 (= 1)", "linux-image-6.1 1; Depends: nowhere", "linux-base 1", "bad 1"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := x.Kernel("linux-image-riscv64"); err != nil || p.Name != "linux-image-6.1" {
		t.Errorf("got %v, %v", p, err)
	}
	for _, name := range []string{"bad", "missing"} {
		if _, err := x.Kernel(name); !errors.Is(err, ErrUnresolved) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParsePackages(t *testing.T) {
	good := packages("a 1; Essential: yes; Description: short\n long\n .\n more", "b 2")
	x, err := parsePackages("\n\n" + good)
	if err != nil || len(x.packages) != 2 || !slices.Equal(x.Essential(), []string{"a"}) {
		t.Fatalf("%+v, %v", x, err)
	}
	for name, text := range map[string]string{
		"empty":         "",
		"no name":       strings.Replace(good, "Package: b\n", "", 1),
		"no size":       strings.Replace(good, "Size: 1\n", "", 1),
		"negative size": strings.Replace(good, "Size: 1\n", "Size: -1\n", 1),
		"no hash":       strings.Replace(good, "SHA256", "SHA1", 1),
		"short hash":    strings.Replace(good, "000000\n", "\n", 1),
		"climbing path": strings.Replace(good, "pool/a", "pool/../../a", 1),
	} {
		if _, err := parsePackages(text); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPackages resolves whatever parses.
func FuzzPackages(f *testing.F) {
	f.Add(packages("a 1; Depends: b (>= 1) | c, d:any; Conflicts: e; Provides: v (= 2), w", "b 1; Breaks: v", "d 1; Pre-Depends: ${x}, y [amd64] <!z>"))
	f.Add("Package: a\n\nPackage: b\n c\n")
	f.Fuzz(func(t *testing.T, text string) {
		x, err := parsePackages(text)
		if err != nil {
			return
		}
		for _, p := range x.packages {
			got, err := x.Resolve([]string{p.Name})
			if err == nil && !slices.ContainsFunc(got, func(q *Package) bool { return q.Name == p.Name }) {
				t.Fatalf("%s is not among what it needs", p.Name)
			}
		}
	})
}
