package template

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/forkd-dev/forkd/internal/records"
	"github.com/forkd-dev/forkd/internal/sandbox"
)

// state is what is kept; it is not changed once it is known.
type state struct {
	templates map[string]Template // by name
	settings  map[string]Settings // by tag of a snapshot
	doomed    map[string]bool     // tags of snapshots that go when nothing comes from them any more
}

func newState() state {
	return state{make(map[string]Template), make(map[string]Settings), make(map[string]bool)}
}

func (s state) clone() state {
	return state{maps.Clone(s.templates), maps.Clone(s.settings), maps.Clone(s.doomed)}
}

// contents are what is in the file.
type contents struct {
	Version   int                 `json:"version"`
	Templates []Template          `json:"templates"`
	Settings  map[string]Settings `json:"settings,omitempty"`
	Doomed    []string            `json:"doomed,omitempty"`
}

func parse(b []byte) (state, error) {
	var c contents
	if err := json.Unmarshal(b, &c); err != nil {
		return state{}, err
	}
	if c.Version != storeVersion {
		return state{}, fmt.Errorf("version %d, this forkd reads version %d", c.Version, storeVersion)
	}
	known := newState()
	maps.Copy(known.settings, c.Settings)
	for _, tag := range c.Doomed {
		if !namePattern.MatchString(tag) {
			return state{}, fmt.Errorf("malformed tag of a snapshot %q", tag)
		}
		known.doomed[tag] = true
	}
	for _, t := range c.Templates {
		if !namePattern.MatchString(t.Name) {
			return state{}, fmt.Errorf("malformed name %q", t.Name)
		}
		for _, b := range t.Builds {
			if !namePattern.MatchString(b.Snapshot) {
				return state{}, fmt.Errorf("template %s: malformed tag of a snapshot %q", t.Name, b.Snapshot)
			}
		}
		if t.Tags == nil {
			t.Tags = make(map[string]string)
		}
		known.templates[t.Name] = t
	}
	return known, nil
}

// change makes a changed state durable, and then ours.
func (s *Store) change(do func(next state) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.known.clone()
	if err := do(next); err != nil {
		return err
	}
	c := contents{Version: storeVersion, Settings: next.settings, Doomed: slices.Sorted(maps.Keys(next.doomed))}
	for _, name := range slices.Sorted(maps.Keys(next.templates)) {
		c.Templates = append(c.Templates, next.templates[name])
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err == nil && len(b) > maxStore {
		return full("the templates need %d bytes", len(b))
	}
	if err == nil {
		err = records.WriteDurably(s.path, append(b, '\n'))
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.Internal, Message: "keeping the templates", Err: err}
	}
	s.known = next
	return nil
}
