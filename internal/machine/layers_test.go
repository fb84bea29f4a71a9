package machine_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/engine/soft"
	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/machine/machinetest"
	"github.com/forkd-dev/forkd/internal/page"
)

// written writes what layers hold to a file, which it maps.
func written(t *testing.T, layers ...*page.Layer) *page.Layer {
	t.Helper()
	whole := page.Merge(layers...)
	defer whole.Release()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := whole.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	l, err := page.OpenLayer(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !page.Equal(whole, l) {
		t.Fatal("the file holds something else")
	}
	return l
}

// poison fills pages that are free with what makes whoever still uses them fail.
func (l *lab) poison() {
	l.t.Helper()
	pages := make([]*page.Page, 600)
	for i := range pages {
		p, err := l.arena.Alloc()
		if err != nil {
			l.t.Fatal(err)
		}
		for k := range p {
			p[k] = 0xff
		}
		pages[i] = p
	}
	l.arena.Free(pages...)
}

// frozen pauses a machine and freezes it.
func (l *lab) frozen(m *machine.Machine) *machine.Frozen {
	l.t.Helper()
	m.Pause()
	f, err := m.Freeze()
	if err != nil {
		l.t.Fatal(err)
	}
	return f
}

// rounds pauses a machine that runs Rounds, checks its memory, and has it go on.
func rounds(t *testing.T, m *machine.Machine, ram *page.Overlay) uint64 {
	t.Helper()
	m.Pause()
	n, err := machinetest.CheckRounds(func(gpa uint64) *[4096]byte { return ram.Read(page.Number((gpa - board.RAMBase) / page.Size)) })
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(); err != nil {
		t.Fatalf("%v: %v", err, m.Ending())
	}
	return n
}

func goesOn(t *testing.T, m *machine.Machine, ram *page.Overlay) {
	t.Helper()
	n := rounds(t, m, ram)
	eventually(t, "going round", func() bool { return rounds(t, m, ram) > n+3 })
}

// Layers are replaced by files, folded and taken back under machines that run, and what they
// were in is overwritten at once: nobody has a page in a TLB, or code of it, any more.
func TestLayersAreReplacedUnderMachinesThatRun(t *testing.T) {
	for _, vcpus := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d vCPUs", vcpus), func(t *testing.T) { replaceUnderway(t, vcpus) })
	}
}

func replaceUnderway(t *testing.T, vcpus int) {
	l := newLab(t)
	eng := soft.New(0)
	start := func(cfg machine.Config) (*machine.Machine, *page.Overlay) {
		cfg.Engine, cfg.VCPUs = eng, vcpus
		m := l.make(cfg)
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		return m, cfg.Memory.(*page.Overlay)
	}
	cfg := l.config()
	cfg.Memory, cfg.Scratch = l.overlay(nil, ramPages), l.overlay(nil, 16)
	cfg.Boot = &machine.Boot{Kernel: machinetest.Kernel(machinetest.Rounds)}
	m, ram := start(cfg)
	goesOn(t, m, ram)
	for i := range 20 {
		f, err := m.Branch()
		if err != nil {
			t.Fatal(err)
		}
		// The code of the child lies in the layer that is replaced.
		cfg := l.config()
		cfg.Memory, cfg.Scratch = l.overlay(f.Memory, 0), l.overlay(f.Scratch, 0)
		cfg.State = f.State
		child, childRAM := start(cfg)
		goesOn(t, child, childRAM)
		r := page.NewReplacement()
		layers := f.Memory.Layers()
		top := layers[len(layers)-1:]
		if i%3 == 2 && len(layers) > 1 {
			top = layers[len(layers)-2:]
		}
		file := written(t, top...)
		r.Add(top, file)
		file.Release()
		for _, m := range []*machine.Machine{m, child} {
			if i%4 != 3 { // or as if nobody had kept it
				m.Replace(r)
			}
		}
		r.Close()
		f.Memory.Release()
		f.Scratch.Release()
		l.poison()
		if i%4 != 3 {
			// Nothing of RAM that both have in common is in memory.
			if own, most := l.arena.InUse(), 2*(machinetest.RoundPages+16); own > most {
				t.Fatalf("%d pages are in memory, should be %d at most", own, most)
			}
		}
		goesOn(t, child, childRAM)
		if i%2 == 0 {
			child.Pack()
			goesOn(t, child, childRAM)
		}
		child.Close()
		m.Unseal(func() bool { return false })
		l.poison()
		goesOn(t, m, ram)
	}
}

// A machine that would not be taken back from, because it is not the moment, is left alone.
func TestUnsealWaits(t *testing.T) {
	l := newLab(t)
	m, ram := l.boot(machinetest.Rounds)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	goesOn(t, m, ram)
	f, _ := m.Branch()
	f.Memory.Release()
	f.Scratch.Release()
	goesOn(t, m, ram)
	m.Pause()
	before := m.PrivateBytes()
	m.Unseal(func() bool { return true })
	if m.PrivateBytes() != before {
		t.Error("it was taken back from")
	}
	m.Unseal(func() bool { return false })
	if now := m.PrivateBytes(); now > before-machinetest.RoundPages*page.Size {
		t.Errorf("%d bytes are in memory, of the %d before", now, before)
	}
}

// What is kept in memory for a branch counts for the limit of the machine that was
// branched: it ends as if it had written as much otherwise, and nobody else does.
func TestKeptPagesCountForTheLimit(t *testing.T) {
	const limit = machinetest.RoundPages + 20
	l := newLab(t)
	parent, _ := l.boot(machinetest.Rounds)
	frozen := l.freeze(parent)
	limited := func() (*machine.Machine, *page.Overlay) {
		cfg := l.config()
		var err error
		if cfg.Memory, err = cfg.Engine.NewMemory(frozen.Memory, l.arena, limit); err != nil {
			t.Fatal(err)
		}
		cfg.Scratch, cfg.State = l.overlay(frozen.Scratch, 0), frozen.State
		m := l.make(cfg)
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		return m, cfg.Memory.(*page.Overlay)
	}
	neighbour, neighbourRAM := limited()
	m, ram := limited()
	goesOn(t, m, ram)
	goesOn(t, neighbour, neighbourRAM)
	for range 10 { // but not when nobody has the branch
		f := l.frozen(m)
		f.Memory.Release()
		f.Scratch.Release()
		m.Unseal(func() bool { return false })
		goesOn(t, m, ram)
	}
	f, err := m.Branch()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Memory.Release()
	defer f.Scratch.Release()
	if e := ended(t, m); !errors.Is(e.Err, page.ErrQuota) {
		t.Errorf("ended with %v", e)
	}
	goesOn(t, neighbour, neighbourRAM)
}
