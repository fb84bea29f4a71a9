package cell

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/snapshot"
)

// note is a note with everything that json.Marshal writes in another way.
const note = `{"a":"\u003c\u0026\u2028é","b":[1,2.50e+1]}`

// TestSeal: a note is of the one that it was made for, in the cell that it was made for.
func TestSeal(t *testing.T) {
	s, of := newSeal(), subject{ofVM, 7, 3, digestOf(json.RawMessage(`"of all"`))}
	kept, err := s.close(of, json.RawMessage(note))
	if err != nil {
		t.Fatal(err)
	}
	// As it comes back in a message.
	b, err := json.Marshal(wire.VM{Note: kept})
	if err != nil {
		t.Fatal(err)
	}
	var back wire.VM
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if got, err := s.open(of, back.Note); err != nil || string(got) != note {
		t.Errorf("%s, %v", got, err)
	}
	if kept, err := s.close(of, nil); err != nil || !json.Valid(kept) {
		t.Errorf("no note is kept as %s, %v", kept, err)
	} else if got, err := s.open(of, kept); err != nil || string(got) != "null" {
		t.Errorf("no note is %s, %v", got, err)
	}
	for name, of := range map[string]subject{
		"another machine":     {ofVM, 8, 3, of.common},
		"a source":            {ofSource, 7, 3, of.common},
		"of another source":   {ofVM, 7, 4, of.common},
		"on other terms":      {ofVM, 7, 3, digestOf(json.RawMessage(`"of none"`))},
		"the numbers swapped": {ofVM, 3, 7, of.common},
	} {
		if _, err := s.open(of, kept); !errors.Is(err, errSeal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, kept := range map[string]string{
		"another note":      strings.Replace(string(kept), "2.50", "2.51", 1),
		"of another daemon": note,
		"nothing":           "",
		"no seal":           `{"note":` + note + `}`,
	} {
		if _, err := s.open(of, json.RawMessage(kept)); !errors.Is(err, errSeal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, other := range map[string]seal{"another cell": newSeal(), "a cell without a key": nil} {
		kept, err := other.close(of, json.RawMessage(note))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.open(of, kept); !errors.Is(err, errSeal) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := seal(nil).open(of, kept); !errors.Is(err, errSeal) {
			t.Errorf("%s, opened without a key: %v", name, err)
		}
	}
}

func FuzzOpenNote(f *testing.F) {
	s, of := newSeal(), subject{kind: ofSource, id: 1}
	kept, err := s.close(of, json.RawMessage(note))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(kept))
	f.Add([]byte(`{"seal":"","note":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := s.open(of, b); err == nil && string(got) != note {
			t.Errorf("%s is taken for a note of the daemon's: %s", b, got)
		}
	})
}

// TestRecoverForgedNotes: what a cell says of its machines is taken from it only as it
// was told, and what it says otherwise ends the machine, and no other.
func TestRecoverForgedNotes(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	s, _ := l.seed()
	vms := l.fork(l.shared("x"), s, "victim", "neighbour's", "own", "another's", "altered", "source's")
	elsewhere := l.fork(l.shared("y"), s, "elsewhere")[0]
	c := vms[0].Cell()
	say := func(v *VM, n any) {
		t.Helper()
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.tell(wire.OpNote, wire.Note{VM: v.id, Note: b}, nil); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(c *Cell, of subject, n string) json.RawMessage {
		b, err := c.seal.close(of, json.RawMessage(n))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	say(vms[1], kept(c, vms[0].subject(), `"victim"`))
	say(vms[2], "victim") // as a daemon would have said it that did not seal
	say(vms[3], kept(elsewhere.Cell(), elsewhere.subject(), `"elsewhere"`))
	say(vms[4], keptNote{c.seal.sum(vms[4].subject(), json.RawMessage(`"altered"`)), json.RawMessage(`"victim"`)})
	say(vms[5], kept(c, subject{kind: ofSource, id: vms[5].id}, `"victim"`))
	vms[0].Refresh() // is answered after the notes have arrived
	_, found := l.next()
	var notes []string
	for _, f := range found {
		for _, v := range f.VMs {
			if v.Source != 0 { // not the parent
				notes = append(notes, string(v.Note))
			}
		}
	}
	slices.Sort(notes)
	if !slices.Equal(notes, []string{`"elsewhere"`, `"victim"`}) {
		t.Errorf("found are %q", notes)
	}
	for _, f := range found {
		if f.Cell.Name == c.Name {
			awaitMachines(t, f.Cell, 1)
		}
	}
}

// awaitMachines waits until so many machines are in a cell.
func awaitMachines(t *testing.T, c *Cell, want int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var stats []wire.Stat
		if _, err := c.call(t.Context(), request{op: wire.OpStats, body: wire.Stats{}}, &stats); err != nil {
			t.Fatal(err)
		}
		if len(stats) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d machines are in the cell, not %d", len(stats), want)
		}
	}
}

// TestRecoverForgedSource: a source that is not what it was is none.
func TestRecoverForgedSource(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	parent := l.counting()
	cut, _ := l.branch(parent)
	v := l.fork(l.shared("x"), l.snapshot("s", cut), "a")[0]
	c := v.Cell()
	another, err := c.seal.close(subject{kind: ofSource, id: v.source + 1}, json.RawMessage(`"of another"`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.tell(wire.OpNote, wire.Note{Source: v.source, Note: another}, nil); err != nil {
		t.Fatal(err)
	}
	v.Refresh() // as above
	_, found := l.next()
	for _, f := range found {
		if f.Cell.Name == c.Name && len(f.Sources) != 0 {
			t.Errorf("found %+v", f.Sources)
		}
	}
}

// TestAdopt: what a later daemon has opened itself takes the place of what machines of a
// found cell were forked from. Nothing of it comes from the cell, and nothing is sent again.
func TestAdopt(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	s, n := l.seed()
	child := l.fork(l.shared("x"), s, "a")[0]
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	l.counted(child)
	above, _ := l.branch(child)
	l.snapshot("above", above)
	name, known := child.Cell().Name, len(child.Cell().layers)
	l, found := l.next()
	at := slices.IndexFunc(found, func(f Found) bool { return f.Cell.Name == name })
	f := found[at]
	src := f.Sources[slices.IndexFunc(f.Sources, func(s FoundSource) bool { return len(s.Note) > 0 })]
	open := func(tag string) *snapshot.Snapshot {
		t.Helper()
		s, err := l.store.Open(tag)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Release)
		return s
	}
	again := open("s")
	for range 2 { // as if there were two sources of it
		if err := f.Cell.Adopt(src, again); err != nil {
			t.Fatal(err)
		}
		src.ID++
	}
	if got := len(f.Cell.layers); got != known {
		t.Errorf("%d layers are known, not %d", got, known)
	}
	frozen, err := l.fork(f.Cell, again, "b")[0].Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Release()
	if got := l.count(frozen); got != n {
		t.Errorf("a child of what was adopted begins at %d, not %d", got, n)
	}
	if got := len(f.Cell.layers); got != known {
		t.Errorf("%d layers are known after a fork, not %d", got, known)
	}
	l.fork(f.Cell, open("above"), "c")
	if got := len(f.Cell.layers); got != known+1 {
		t.Errorf("%d layers are known after a fork from what stands on it, not %d", got, known+1)
	}
	for id, h := range f.Cell.layers {
		if h.layer.Kind() == page.Pages {
			t.Errorf("layer %d is from the cell", id)
		}
	}
	for what, d := range map[string]wire.Source{
		"more memory":      {Memory: wire.Stack{Limit: 2 * src.spec.Memory.Limit}, Scratch: src.spec.Scratch, Root: src.spec.Root},
		"no root":          {Memory: src.spec.Memory, Scratch: src.spec.Scratch, Root: wire.Stack{Limit: src.spec.Root.Limit}},
		"another root":     {Memory: src.spec.Memory, Scratch: src.spec.Scratch, Root: wire.Stack{Limit: 9, Layers: src.spec.Root.Layers}},
		"a layer too many": {Memory: wire.Stack{Limit: src.spec.Memory.Limit, Layers: append(src.spec.Memory.Layers, 1)}, Scratch: src.spec.Scratch, Root: src.spec.Root},
	} {
		if err := f.Cell.Adopt(FoundSource{ID: 1, spec: d}, again); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRecordOfEarlierForkd: a cell whose notes were not sealed is ended.
func TestRecordOfEarlierForkd(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.counting()
	c := v.Cell()
	r, err := readRecord(l.path(c.Name, recordSuffix))
	if err != nil || len(r.Seal) != sealSize {
		t.Fatalf("%+v, %v", r, err)
	}
	r.Version, r.Seal = 1, nil
	if err := l.write(r); err != nil {
		t.Fatal(err)
	}
	if _, found := l.next(); len(found) != 0 {
		t.Errorf("found %+v", found)
	}
	select {
	case <-c.proc.exited:
	case <-time.After(time.Minute):
		t.Error("its process goes on")
	}
}

// BenchmarkSeal is what a fork pays for each child.
func BenchmarkSeal(b *testing.B) {
	s, of := newSeal(), subject{ofVM, 7, 3, digestOf(json.RawMessage(`"of all"`))}
	n := long("", 400)
	b.SetBytes(int64(len(n)))
	for b.Loop() {
		if _, err := s.close(of, n); err != nil {
			b.Fatal(err)
		}
	}
}
