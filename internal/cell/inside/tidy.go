package inside

import (
	"fmt"
	"os"
	"time"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
)

// What machines have sealed stays in memory only as long as somebody needs it:
//
//   - When a cut has been written down, its layers are replaced by their files.
//   - When nobody has a cut any more, the machine takes its pages back.
//   - Layers that lie between others, and that nobody needs apart, become one.
//
// arranging is held by who does any of it. layout is held for reading by who makes
// machines or sources of stacks, until they are known, and for writing while the stacks
// of sources are replaced: what is made later is of the new ones, and what was made before is
// seen. arranging is locked before layout, which is locked before all others.

// tidyAfter is how long what nobody needs may wait for more of its kind.
const tidyAfter = 20 * time.Millisecond

// tidySoon has what nobody needs any more be given back.
func (s *Server) tidySoon() {
	if s.cuts.Load() {
		s.tidies.soon(tidyAfter, s.tidy)
	}
}

// tidy gives back what nobody needs any more of what machines have sealed.
func (s *Server) tidy() {
	s.arranging.Lock()
	defer s.arranging.Unlock()
	s.absorb()
	for _, v := range s.machines() {
		attempt(func() { v.machine.Unseal(func() bool { return s.pinned(v) }) }) // a branch must not wait for it
	}
	attempt(s.fold)
	s.trims.soon(trimAfter, s.trim)
}

// attempt calls give, which gives memory back if it can read the pages that it has to. One
// that cannot be read is the end of the machine that needs it, and nothing to others.
func attempt(give func()) {
	err := page.Guard(func() error {
		give()
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "forkd cell: giving memory back:", err)
	}
}

// absorb has layers that consist of others take over their pages. Somebody who fetches
// one of those has it for a moment, and will have us come back. One that nobody has any more
// must not keep what it consists of from others. The caller holds s.arranging.
func (s *Server) absorb() {
	whole := s.whole
	s.whole = nil
	for _, l := range whole {
		done := false
		attempt(func() { done = l.Alone() || l.Absorb() })
		if done {
			l.Release()
		} else {
			s.whole = append(s.whole, l)
		}
	}
}

// machines returns all machines.
func (s *Server) machines() (vms []*vm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.vms {
		vms = append(vms, v)
	}
	return vms
}

// standing returns references to the stacks that sources and machines lie over, but for
// those of one source.
func (s *Server) standing(except uint64) (list []*page.Stack) {
	s.mu.Lock()
	for _, o := range s.sources {
		if o.id != except {
			list = append(list, o.retain()...)
		}
	}
	s.mu.Unlock()
	for _, v := range s.machines() {
		if below, ok := v.machine.Stacks(); ok {
			list = append(list, below.MemoryBase, below.Memory, below.ScratchBase, below.Scratch)
		}
	}
	return list
}

func releaseAll(list []*page.Stack) {
	for _, stack := range list {
		stack.Release()
	}
}

// fold makes one of layers that nobody needs apart. The caller holds s.arranging.
func (s *Server) fold() {
	if r := s.folding(); r != nil {
		s.replace(r)
		r.Close()
		s.absorb()
	}
}

// folding returns what becomes of layers that nobody needs apart; nil if there are none. What
// they become is in s.whole. The caller holds s.arranging.
func (s *Server) folding() *page.Replacement {
	list := s.standing(0)
	defer releaseAll(list) // machines and sources may go meanwhile, and their layers with them
	runs := page.Foldable(list)
	if len(runs) == 0 {
		return nil
	}
	r := page.NewReplacement()
	for _, run := range runs {
		whole := page.Merge(run...)
		r.Add(run, whole)
		s.whole = append(s.whole, whole)
	}
	return r
}

// replace replaces layers wherever they are. The caller holds s.arranging.
func (s *Server) replace(r *page.Replacement) {
	s.replaceSources(r)
	for _, v := range s.machines() {
		v.machine.Replace(r)
	}
	s.replaceSources(r) // those that were cut meanwhile
}

func (s *Server) replaceSources(r *page.Replacement) {
	// What takes time first.
	s.mu.Lock()
	var list []*page.Stack
	for _, o := range s.sources {
		list = append(list, o.retain()...)
	}
	s.mu.Unlock()
	for _, stack := range list {
		r.Of(stack)
	}
	releaseAll(list)
	s.layout.Lock()
	defer s.layout.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.sources {
		for _, stack := range o.all() {
			if *stack == nil {
				continue
			}
			if next, _ := r.Of(*stack); next != nil {
				next.Retain()
				(*stack).Release() // the replacement has it, too
				*stack = next
			}
		}
	}
}

// files has layers that have been written down be in their files.
func (s *Server) files(m *wire.Message, d wire.Files) (*result, error) {
	s.arranging.Lock()
	defer s.arranging.Unlock()
	r := page.NewReplacement()
	defer s.freed() // after what follows
	defer r.Close()
	filed := wire.Filed{Layers: make([]uint64, len(d.Runs))}
	err := page.Guard(func() error {
		list := s.standing(d.Source)
		defer releaseAll(list)
		next := 0
		for i, run := range d.Runs {
			var file *page.Layer
			if !run.Empty {
				f, err := take(m, next)
				if err != nil {
					return err
				}
				next++
				if file, err = page.OpenLayerFile(f, page.MaxLimit); err != nil {
					return fmt.Errorf("opening the file of a layer: %w", err)
				}
				file.Detach() // a machine that is branched often has many
			}
			filed.Layers[i] = s.file(r, run, file, list)
		}
		s.replace(r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &result{body: filed}, nil
}

// file has a run of layers be replaced by a file, which it takes over and which is nil if they
// are empty. It returns the number of the file's layer, 0 if nobody who is in the list needs
// the run, or the file holds something else.
func (s *Server) file(r *page.Replacement, run wire.FileRun, file *page.Layer, list []*page.Stack) uint64 {
	var layers []*page.Layer
	defer func() { // also if one of them cannot be read
		for _, l := range layers {
			l.Release()
		}
		if file != nil {
			file.Release()
		}
	}()
	for _, id := range run.Layers {
		l, err := s.layers.get(id)
		if err != nil {
			return 0 // it has been replaced, or nobody needs it any more
		}
		layers = append(layers, l)
	}
	if !page.Stand(list, layers) {
		return 0
	}
	whole := page.Merge(layers...)
	defer whole.Release()
	if file == nil {
		if whole.Len() == 0 {
			r.Add(layers, nil)
		}
		return 0
	}
	if !page.Equal(whole, file) {
		fmt.Fprintf(os.Stderr, "forkd cell: the file of a layer does not hold what the layer does\n")
		return 0
	}
	r.Add(layers, file)
	return s.layers.number(file)
}
