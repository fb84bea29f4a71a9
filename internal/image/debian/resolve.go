package debian

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pault.ag/go/debian/dependency"
	"pault.ag/go/debian/version"
)

// Resolve returns the packages called names and all they depend on, each after
// its own dependencies (but for cycles). The same index and names give the same
// list. Recommends are not followed. The error wraps ErrUnresolved and says
// which package needs what.
func (x *Index) Resolve(names []string) ([]*Package, error) {
	r := &resolver{index: x, chosen: map[string]*Package{}, needs: map[*Package][]*Package{}}
	for _, name := range names {
		p := x.best(name, nil)
		if p == nil {
			return nil, withHint(fmt.Errorf("%w: there is no package %q in %s", ErrUnresolved, name, x.Suite),
				"check the spelling; only the main component is searched")
		}
		r.choose(p)
	}
	// The queue grows while it is read: everything asked for by name is chosen
	// before the first alternative has to be decided.
	for i := 0; i < len(r.queue); i++ {
		if err := r.expand(r.queue[i]); err != nil {
			return nil, err
		}
	}
	if err := r.checkConflicts(); err != nil {
		return nil, err
	}
	return r.ordered(), nil
}

type resolver struct {
	index  *Index
	chosen map[string]*Package
	queue  []*Package
	needs  map[*Package][]*Package // what each package depends on, among the chosen
}

func (r *resolver) choose(p *Package) {
	if r.chosen[p.Name] == nil {
		r.chosen[p.Name] = p
		r.queue = append(r.queue, p)
	}
}

// expand chooses what p depends on.
func (r *resolver) expand(p *Package) error {
	relations, err := parseRelations(p, p.preDepends, p.depends)
	if err != nil {
		return err
	}
	for _, relation := range relations {
		need := r.installed(relation)
		if need == nil {
			need = r.index.candidate(relation)
		}
		if need == nil {
			return fmt.Errorf("%w: %s needs %s, which nothing provides", ErrUnresolved, p, relationText(relation))
		}
		if other := r.chosen[need.Name]; other != nil && other != need {
			return fmt.Errorf("%w: %s needs %s, but %s was chosen", ErrUnresolved, p, relationText(relation), other)
		}
		r.choose(need)
		r.needs[p] = append(r.needs[p], need)
	}
	return nil
}

// installed returns the chosen package that satisfies relation, or nil.
func (r *resolver) installed(relation dependency.Relation) *Package {
	for _, want := range relation.Possibilities {
		if p := r.chosen[want.Name]; p != nil && versionFits(p.Version, want.Version) {
			return p
		}
	}
	for _, want := range relation.Possibilities {
		for _, p := range r.queue {
			if p.providesFor(want) {
				return p
			}
		}
	}
	return nil
}

// candidate returns the package to install for relation, or nil: the first
// alternative that exists, real packages before those that provide it.
func (x *Index) candidate(relation dependency.Relation) *Package {
	for _, want := range relation.Possibilities {
		if p := x.best(want.Name, want.Version); p != nil {
			return p
		}
		if p := x.provider(want); p != nil {
			return p
		}
	}
	return nil
}

// best returns the newest package of that name that fits, or nil.
func (x *Index) best(name string, want *dependency.VersionRelation) *Package {
	var best *Package
	for _, p := range x.byName[name] {
		if versionFits(p.Version, want) && (best == nil || compareVersions(p.Version, best.Version) > 0) {
			best = p
		}
	}
	return best
}

// provider returns the package that provides want: the highest priority, then
// the first by name, so that the choice does not depend on the index's order.
func (x *Index) provider(want dependency.Possibility) *Package {
	var found []*Package
	for _, p := range x.packages {
		if p.providesFor(want) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return slices.MinFunc(found, func(a, b *Package) int {
		return cmp.Or(cmp.Compare(priorityRank(a.priority), priorityRank(b.priority)),
			strings.Compare(a.Name, b.Name), -compareVersions(a.Version, b.Version))
	})
}

func priorityRank(priority string) int {
	order := []string{"required", "important", "standard", "optional"}
	if i := slices.Index(order, priority); i >= 0 {
		return i
	}
	return len(order)
}

// providesFor reports whether p provides what is wanted. Most packages provide
// nothing like it, so the text is searched before it is parsed.
func (p *Package) providesFor(want dependency.Possibility) bool {
	if want.Name == "" || !strings.Contains(p.provides, want.Name) {
		return false
	}
	provided, err := dependency.Parse(p.provides)
	if err != nil {
		return false
	}
	for _, relation := range provided.Relations {
		for _, have := range relation.Possibilities {
			if have.Name != want.Name {
				continue
			}
			// A versioned dependency needs a versioned provision (policy 7.5).
			if want.Version == nil || have.Version != nil && versionFits(have.Version.Number, want.Version) {
				return true
			}
		}
	}
	return false
}

func parseRelations(p *Package, texts ...string) ([]dependency.Relation, error) {
	var all []dependency.Relation
	for _, text := range texts {
		parsed, err := dependency.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%w package list: relations of %s: %w", ErrFormat, p, err)
		}
		for _, relation := range parsed.Relations {
			if len(relation.Possibilities) > 0 {
				all = append(all, relation)
			}
		}
	}
	return all, nil
}

// checkConflicts refuses a set in which one package conflicts with or breaks
// another.
func (r *resolver) checkConflicts() error {
	for _, p := range r.queue {
		relations, err := parseRelations(p, p.conflicts, p.breaks)
		if err != nil {
			return err
		}
		for _, relation := range relations {
			for _, bad := range relation.Possibilities {
				if other := r.conflicting(p, bad); other != nil {
					return withHint(fmt.Errorf("%w: %s and %s exclude each other", ErrUnresolved, p, other),
						"leave one of the packages that need them out")
				}
			}
		}
	}
	return nil
}

func (r *resolver) conflicting(p *Package, bad dependency.Possibility) *Package {
	if other := r.chosen[bad.Name]; other != nil && other != p && versionFits(other.Version, bad.Version) {
		return other
	}
	for _, other := range r.queue {
		if other != p && other.providesFor(bad) {
			return other
		}
	}
	return nil
}

// ordered returns the chosen packages, dependencies first.
func (r *resolver) ordered() []*Package {
	var order []*Package
	seen := map[*Package]bool{}
	var visit func(*Package)
	visit = func(p *Package) {
		if seen[p] {
			return
		}
		seen[p] = true
		for _, need := range r.needs[p] {
			visit(need)
		}
		order = append(order, p)
	}
	for _, p := range r.queue {
		visit(p)
	}
	return order
}

// versionFits reports whether have satisfies want; a nil want is satisfied by
// anything. A version that does not parse satisfies nothing.
func versionFits(have string, want *dependency.VersionRelation) bool {
	if want == nil {
		return true
	}
	a, errA := version.Parse(have)
	b, errB := version.Parse(want.Number)
	if errA != nil || errB != nil {
		return false
	}
	c := version.Compare(a, b)
	switch want.Operator {
	case "<<":
		return c < 0
	case "<=", "<":
		return c <= 0
	case "=":
		return c == 0
	case ">=", ">":
		return c >= 0
	case ">>":
		return c > 0
	}
	return false
}

// compareVersions orders versions as dpkg does; one that does not parse is
// older than all others.
func compareVersions(a, b string) int {
	va, _ := version.Parse(a)
	vb, _ := version.Parse(b)
	return version.Compare(va, vb)
}

func relationText(relation dependency.Relation) string {
	var parts []string
	for _, want := range relation.Possibilities {
		text := want.Name
		if want.Version != nil {
			text += fmt.Sprintf(" (%s %s)", want.Version.Operator, want.Version.Number)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " | ")
}

// Kernel returns the package that the meta-package name depends on and that
// holds a kernel image. Its own dependencies, which install a boot loader's
// files, are not a guest's business.
func (x *Index) Kernel(name string) (*Package, error) {
	meta := x.best(name, nil)
	if meta == nil {
		return nil, fmt.Errorf("%w: there is no package %q in %s", ErrUnresolved, name, x.Suite)
	}
	relations, err := parseRelations(meta, meta.preDepends, meta.depends)
	if err != nil {
		return nil, err
	}
	for _, relation := range relations {
		if p := x.candidate(relation); p != nil && strings.HasPrefix(p.Name, "linux-image-") {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: %s depends on no kernel", ErrUnresolved, meta)
}
