package debian

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

// alternative is one way to provide a name, as a package's script registers it:
// link is a symbolic link to /etc/alternatives/name, which leads to path.
type alternative struct {
	link, name, path string
	priority         int
	slaves           []alternative // links that go with this one
}

// literal is what an argument must look like to be taken as it stands: not made
// of variables, patterns or other commands' output.
var literal = regexp.MustCompile(`^[A-Za-z0-9_/.+:@-]+$`)

// parseAlternatives reads the update-alternatives commands of a maintainer
// script. It does not run or interpret the script; commands with arguments that
// are not literal are left out.
func parseAlternatives(script string) []alternative {
	var found []alternative
	for line := range strings.Lines(strings.ReplaceAll(script, "\\\n", " ")) {
		words := strings.Fields(line)
		at := slices.Index(words, "update-alternatives")
		if at < 0 {
			continue
		}
		if a, ok := parseInstall(words[at+1:]); ok {
			found = append(found, a)
		}
	}
	return found
}

// parseInstall reads the arguments
// [options] --install link name path priority [--slave link name path]...
func parseInstall(words []string) (alternative, bool) {
	at := slices.Index(words, "--install")
	if at < 0 || len(words) < at+5 {
		return alternative{}, false
	}
	a, ok := makeAlternative(words[at+1 : at+4])
	priority, err := strconv.Atoi(words[at+4])
	if !ok || err != nil {
		return alternative{}, false
	}
	a.priority = priority
	words = words[at+5:]
	for len(words) >= 4 && words[0] == "--slave" {
		if slave, ok := makeAlternative(words[1:4]); ok {
			a.slaves = append(a.slaves, slave)
		}
		words = words[4:]
	}
	return a, true
}

func makeAlternative(words []string) (alternative, bool) {
	for i, word := range words {
		words[i] = strings.Trim(word, `"'`)
		if !literal.MatchString(words[i]) {
			return alternative{}, false
		}
	}
	a := alternative{link: words[0], name: words[1], path: words[2]}
	return a, path.IsAbs(a.link) && path.IsAbs(a.path) && !strings.Contains(a.name, "/") && a.name != "." && a.name != ".."
}

// alternatives makes the links of the best alternative for each name: the
// highest priority whose program is installed, then the first by path.
func (f *fixer) alternatives(all []alternative) {
	slices.SortStableFunc(all, func(a, b alternative) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(b.priority, a.priority), strings.Compare(a.path, b.path))
	})
	last := ""
	for _, a := range all {
		if a.name == last || !exists(f.tree, a.path) {
			continue
		}
		last = a.name
		f.alternative(a)
		for _, slave := range a.slaves {
			f.alternative(slave)
		}
	}
}

func (f *fixer) alternative(a alternative) {
	if !exists(f.tree, a.path) || exists(f.tree, a.link) {
		return // a manual page that was left out, or a package's own file
	}
	f.add("etc/alternatives/"+a.name, rootfs.Link(a.path))
	f.add(a.link, rootfs.Link("/etc/alternatives/"+a.name))
}

func exists(tree *rootfs.Tree, path string) bool {
	_, err := tree.Lookup(path)
	return err == nil
}
