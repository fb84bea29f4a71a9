package cell

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// long returns a note of so many bytes.
func long(name string, n int) json.RawMessage {
	b, _ := json.Marshal(name + strings.Repeat("x", n-len(name)-2)) // a string does not fail
	return b
}

// TestRecoverLongNotes: a cell tells of all that it has, however much the notes are together.
func TestRecoverLongNotes(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	s, _ := l.seed()
	const forks, each, size = 3, 7, 850 << 10 // more than a message holds
	want := make(map[string]string)
	for i := range forks {
		spec := Spec{Common: long(fmt.Sprint("of ", i), size)}
		for k := range each {
			note := long(fmt.Sprint(i, " ", k), size)
			want[string(note)] = string(spec.Common)
			spec.Children = append(spec.Children, Child{Note: note})
		}
		if _, errs := l.shared("x").Fork(t.Context(), s, noNote, spec); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	name := l.shared("x").Name
	_, found := l.next()
	for _, f := range found {
		if f.Cell.Name != name {
			continue
		}
		if len(f.Sources) != 1 {
			t.Errorf("%d sources", len(f.Sources))
		}
		for _, v := range f.VMs {
			if want[string(v.Note)] != string(v.Common) {
				t.Errorf("%.10s of a fork %.10s", v.Note, v.Common)
			}
			delete(want, string(v.Note))
		}
	}
	if len(want) != 0 {
		t.Errorf("%d machines of %d are lost", len(want), forks*each)
	}
}

// TestTooLongNotes: what a cell could not tell a later daemon of it is not told.
func TestTooLongNotes(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	v := l.counting()
	if err := v.SetNote(long("", 2<<20)); err == nil {
		t.Error("a machine has it")
	}
	cut, _ := l.branch(v)
	s := l.snapshot("s", cut)
	note := func() (json.RawMessage, error) { return long("", 2<<20), nil }
	for name, try := range map[string]func() []error{
		"a source": func() []error {
			_, errs := l.shared("x").Fork(t.Context(), s, note, Spec{Children: make([]Child, 1)})
			return errs
		},
		"a fork": func() []error {
			_, errs := l.shared("x").Fork(t.Context(), s, noNote, Spec{Common: long("", 2<<20), Children: make([]Child, 1)})
			return errs
		},
	} {
		if errs := try(); errs[0] == nil || !strings.Contains(errs[0].Error(), "too long") {
			t.Errorf("%s: %v", name, errs[0])
		}
	}
}

// TestPartsThatMakeNoSense: what a cell says of what it has is checked.
func TestPartsThatMakeNoSense(t *testing.T) {
	c := &Cell{vms: make(map[uint64]*VM)}
	for name, part := range map[string]wire.State{
		"a source twice":         {Sources: []wire.Source{{ID: 8}, {ID: 8}}},
		"one of the part before": {Sources: []wire.Source{{ID: 7}}},
		"a machine twice":        {VMs: []wire.VM{{ID: 8}, {ID: 8}}},
		"a note that is not":     {VMs: []wire.VM{{ID: 8, Common: 1}}},
		"a note before all":      {VMs: []wire.VM{{ID: 8, Common: -1}}},
	} {
		if err := (&Found{Cell: c}).add(&part, 7); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestDeadCellIsNotEntered: a cell that ends while it is taken over is not what later machines
// are made in.
func TestDeadCellIsNotEntered(t *testing.T) {
	l := newLab(t, shortDir(t), nil)
	c, err := l.Fresh()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.proc.kill(); err != nil {
		t.Fatal(err)
	}
	<-c.gone
	if err := l.enter(c, "x"); !errors.Is(err, ErrLost) {
		t.Errorf("entered: %v", err)
	}
	if again := l.shared("x"); again == c {
		t.Error("the dead cell is for it")
	}
}
