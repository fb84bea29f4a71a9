package debian

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Package is one binary package as the index describes it. It is immutable.
type Package struct {
	Name, Version, Arch string
	Filename            string // path on the mirror
	Size                int64  // of the .deb, in bytes
	SHA256              string // of the .deb, lower-case hex
	Essential           bool

	priority            string
	depends, preDepends string // as in the index; parsed when needed
	provides            string
	conflicts, breaks   string
	stanza              string
}

// String returns "name version".
func (p *Package) String() string { return p.Name + " " + p.Version }

// Index is the list of packages of one suite and architecture. It is immutable.
type Index struct {
	Suite   string    // as asked for, for example "trixie"
	Version string    // of the release, for example "13.1"; may be empty
	Date    time.Time // when the index was signed
	Digest  string    // SHA-256 of the signed index file, in hex
	Offline bool      // the mirror could not be reached and a stored index was used

	packages []*Package
	byName   map[string][]*Package
}

// parsePackages reads the text of a Packages file. The packages keep parts of
// text, so the file is in memory once and only the fields asked for are split.
func parsePackages(text string) (*Index, error) {
	x := &Index{byName: map[string][]*Package{}}
	for stanza := range stanzas(text) {
		p, err := parsePackage(stanza)
		if err != nil {
			return nil, err
		}
		x.packages = append(x.packages, p)
		x.byName[p.Name] = append(x.byName[p.Name], p)
	}
	if len(x.packages) == 0 {
		return nil, fmt.Errorf("%w package list: it is empty", ErrFormat)
	}
	return x, nil
}

func parsePackage(stanza string) (*Package, error) {
	p := &Package{stanza: stanza}
	size := ""
	for name, value := range fields(stanza) {
		switch name {
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Architecture":
			p.Arch = value
		case "Filename":
			p.Filename = value
		case "Size":
			size = value
		case "SHA256":
			p.SHA256 = value
		case "Essential":
			p.Essential = value == "yes"
		case "Priority":
			p.priority = value
		case "Depends":
			p.depends = value
		case "Pre-Depends":
			p.preDepends = value
		case "Provides":
			p.provides = value
		case "Conflicts":
			p.conflicts = value
		case "Breaks":
			p.breaks = value
		}
	}
	var err error
	p.Size, err = strconv.ParseInt(size, 10, 64)
	switch {
	case p.Name == "" || p.Version == "" || p.Filename == "":
		err = fmt.Errorf("Package, Version or Filename is missing")
	case err != nil || p.Size <= 0:
		err = fmt.Errorf("size %.40q", size)
	case !isSHA256(p.SHA256):
		err = fmt.Errorf("hash %.80q", p.SHA256)
	case strings.Contains("/"+p.Filename+"/", "/../"):
		err = fmt.Errorf("path %.80q climbs", p.Filename)
	}
	if err != nil {
		return nil, fmt.Errorf("%w package list: package %.80q: %w", ErrFormat, p.Name, err)
	}
	return p, nil
}

// Essential returns the names of the packages that Debian considers part of
// every installation, in the index's order.
func (x *Index) Essential() []string {
	var names []string
	for _, p := range x.packages {
		if p.Essential {
			names = append(names, p.Name)
		}
	}
	return names
}
