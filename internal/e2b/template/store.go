package template

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	storeVersion = 1
	storeFile    = "templates.json"
	maxStore     = 16 << 20 // bytes

	maxTemplates = 10000
	maxBuilds    = 1000 // of one template
	maxTags      = 1000 // of one template
)

// DefaultTag is the tag of a build if none is given, and what is meant by a name
// without one.
const DefaultTag = "default"

var (
	namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	tagPattern  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

// Settings are what sandboxes of a template begin with.
type Settings struct {
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`    // of commands; empty: the API's default
	Workdir string            `json:"workdir,omitempty"` // of commands; empty: the user's home
}

func (s Settings) isZero() bool { return len(s.Env) == 0 && s.User == "" && s.Workdir == "" }

// Build is a snapshot under the name of a template.
type Build struct {
	ID        string    `json:"id"` // a UUID
	Snapshot  string    `json:"snapshot"`
	CreatedAt time.Time `json:"created_at"`
}

// Template is a name with what was published under it.
type Template struct {
	Name   string            `json:"name"`
	Builds []Build           `json:"builds"` // oldest first
	Tags   map[string]string `json:"tags"`   // ids of builds
}

// Build returns the build that a tag leads to.
func (t *Template) Build(tag string) (Build, bool) {
	i := slices.IndexFunc(t.Builds, func(b Build) bool { return b.ID == t.Tags[tag] })
	if i < 0 {
		return Build{}, false
	}
	return t.Builds[i], true
}

// Latest returns the build that is meant without a tag or, without such, the
// youngest.
func (t *Template) Latest() (Build, bool) {
	if b, ok := t.Build(DefaultTag); ok {
		return b, true
	}
	if len(t.Builds) == 0 {
		return Build{}, false
	}
	return t.Builds[len(t.Builds)-1], true
}

func (t Template) clone() Template {
	t.Builds, t.Tags = slices.Clone(t.Builds), maps.Clone(t.Tags)
	return t
}

// Resolved is what a reference to a template leads to.
type Resolved struct {
	Name     string // of the template, without its tag
	Tag      string
	Snapshot string
	BuildID  string
	Alias    bool // the name is one of the configured aliases
	Settings
}

// Store keeps the templates of one home. Its methods are safe for concurrent use
// and fail with *sandbox.Error.
type Store struct {
	path    string
	aliases map[string]string // immutable

	mu    sync.Mutex
	known state // guarded by mu, replaced whole
}

// Open reads the templates in a directory, which it makes. aliases lead from
// names to tags of snapshots.
func Open(dir string, aliases map[string]string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the templates: %w", err)
	}
	s := &Store{path: filepath.Join(dir, storeFile), aliases: maps.Clone(aliases)}
	s.known = newState()
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the templates: %w", err)
	}
	if info.Size() > maxStore {
		return nil, fmt.Errorf("opening the templates: %s has %d bytes, more than it can have", s.path, info.Size())
	}
	b, err := os.ReadFile(s.path)
	if err == nil {
		s.known, err = parse(b)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the templates in %s: %w", s.path, err)
	}
	return s, nil
}

// Parse splits a reference "name", "name:tag" or "team/name:tag". The team does
// not matter: a daemon has one.
func Parse(ref string) (name, tag string, err error) {
	name, tag, tagged := strings.Cut(ref[strings.LastIndexByte(ref, '/')+1:], ":")
	if !tagged {
		tag = DefaultTag
	}
	switch {
	case name != "" && !namePattern.MatchString(name):
		return "", "", invalid("a name has 1 to 64 letters, digits, _ and -", "malformed name of a template %q", clip(name))
	case !tagPattern.MatchString(tag):
		return "", "", invalid("a tag has 1 to 64 letters, digits, _, . and -", "malformed tag of a template %q", clip(tag))
	}
	return name, tag, nil
}

// Resolve finds what a reference leads to. That the snapshot exists is for the
// domain to say.
func (s *Store) Resolve(ref string) (Resolved, error) {
	name, tag, err := Parse(ref)
	if err != nil {
		return Resolved{}, err
	}
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	r := Resolved{Name: name, Tag: tag}
	plain := tag == DefaultTag || tag == "latest"
	t, published := known.templates[name]
	if snapshot, ok := s.aliases[name]; ok && plain {
		r.Snapshot, r.BuildID, r.Alias = snapshot, BuildID(snapshot), true
	} else if b, ok := t.Build(tag); ok {
		r.Snapshot, r.BuildID = b.Snapshot, b.ID
	} else if published && len(t.Tags) > 0 || !plain {
		return Resolved{}, notFound("template %q has no build with the tag %q", name, tag)
	} else if name == "" {
		return Resolved{}, invalid("", "templateID: required")
	} else {
		r.Snapshot, r.BuildID = name, BuildID(name)
	}
	if known.doomed[r.Snapshot] {
		return Resolved{}, notFound("template %q was deleted", name)
	}
	r.Settings = known.settings[r.Snapshot]
	return r, nil
}

// BuildID returns the id of the build that stands for a snapshot which was not
// made by one: always the same.
func BuildID(snapshot string) string {
	sum := sha256.Sum256([]byte("forkd snapshot " + snapshot))
	return uuid([16]byte(sum[:16]), 8)
}

// uuid formats bits as a UUID of a version (RFC 9562).
func uuid(b [16]byte, version byte) string {
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// IsAlias reports whether a name was configured.
func (s *Store) IsAlias(name string) bool {
	_, ok := s.aliases[name]
	return ok
}

// Aliases returns the configured names of a snapshot, in order.
func (s *Store) Aliases(snapshot string) (names []string) {
	for name, tag := range s.aliases {
		if tag == snapshot && name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// All returns the templates in the order of their names.
func (s *Store) All() (list []Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.known.templates)) {
		list = append(list, s.known.templates[name].clone())
	}
	return list
}

// Template returns one of the templates.
func (s *Store) Template(name string) (Template, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.known.templates[name]
	return t.clone(), ok
}

// Keep remembers the settings of a snapshot.
func (s *Store) Keep(snapshot string, settings Settings) error {
	if settings.isZero() {
		return nil
	}
	return s.change(func(next state) error {
		next.settings[snapshot] = settings
		return nil
	})
}

// Publish adds a build to a template and has tags lead to it.
func (s *Store) Publish(name string, b Build, settings Settings, tags ...string) error {
	return s.update(name, func(t *Template) error {
		if len(t.Builds) >= maxBuilds {
			return full("template %q has %d builds", name, maxBuilds)
		}
		t.Builds = append(t.Builds, b)
		return t.assign(b.ID, tags)
	}, func(next state) {
		if !settings.isZero() {
			next.settings[b.Snapshot] = settings
		}
	})
}

// Assign has further tags lead to what a reference leads to, and returns its
// build. A snapshot becomes a template of its name.
func (s *Store) Assign(ref string, tags []string) (buildID string, err error) {
	r, err := s.Resolve(ref)
	if err != nil {
		return "", err
	}
	if r.Alias {
		return "", forbidden("%q is a configured name and has no tags", r.Name)
	}
	return r.BuildID, s.update(r.Name, func(t *Template) error {
		if !slices.ContainsFunc(t.Builds, func(b Build) bool { return b.ID == r.BuildID }) {
			t.Builds = append(t.Builds, Build{ID: r.BuildID, Snapshot: r.Snapshot, CreatedAt: time.Now().UTC()})
			t.Tags[DefaultTag] = r.BuildID
		}
		return t.assign(r.BuildID, tags)
	})
}

func (t *Template) assign(id string, tags []string) error {
	for _, tag := range tags {
		if !tagPattern.MatchString(tag) {
			return invalid("a tag has 1 to 64 letters, digits, _, . and -", "malformed tag of a template %q", clip(tag))
		}
		t.Tags[tag] = id
	}
	if len(t.Tags) > maxTags {
		return full("template %q has %d tags", t.Name, maxTags)
	}
	return nil
}

// Untag takes tags from a template; its builds stay.
func (s *Store) Untag(ref string, tags []string) error {
	name, _, err := Parse(ref)
	if err != nil {
		return err
	}
	return s.update(name, func(t *Template) error {
		for _, tag := range tags {
			if _, ok := t.Tags[tag]; !ok {
				return notFound("template %q has no tag %q", name, clip(tag))
			}
			delete(t.Tags, tag)
		}
		return nil
	})
}

// Discard forgets a template, if there is one of the name, and dooms snapshots.
func (s *Store) Discard(name string, snapshots ...string) error {
	return s.change(func(next state) error {
		delete(next.templates, name)
		for _, tag := range snapshots {
			delete(next.settings, tag)
			next.doomed[tag] = true
		}
		return nil
	})
}

// Doomed returns the tags of the doomed snapshots, in order.
func (s *Store) Doomed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.known.doomed))
}

// Gone forgets doomed snapshots that are gone.
func (s *Store) Gone(snapshots ...string) error {
	return s.change(func(next state) error {
		for _, tag := range snapshots {
			delete(next.doomed, tag)
		}
		return nil
	})
}

// update changes a template, which it makes, and more, in one step.
func (s *Store) update(name string, change func(*Template) error, more ...func(state)) error {
	if !namePattern.MatchString(name) {
		return invalid("a name has 1 to 64 letters, digits, _ and -", "malformed name of a template %q", clip(name))
	}
	return s.change(func(next state) error {
		t, known := next.templates[name]
		if !known && len(next.templates) >= maxTemplates {
			return full("there are %d templates", maxTemplates)
		}
		t = t.clone()
		t.Name = name
		if t.Tags == nil {
			t.Tags = make(map[string]string)
		}
		if err := change(&t); err != nil {
			return err
		}
		next.templates[name] = t
		for _, do := range more {
			do(next)
		}
		return nil
	})
}
