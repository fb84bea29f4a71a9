package inside

import (
	"fmt"
	"maps"
	"slices"

	"github.com/forkd-dev/forkd/internal/cell/wire"
)

// hello greets a daemon.
func (s *Server) hello(_ *wire.Message, h wire.Hello) (*result, error) {
	if h.Cell != s.cfg.Name {
		return nil, fmt.Errorf("this is cell %q, not %q", s.cfg.Name, h.Cell)
	}
	return &result{body: wire.Welcome{Jail: s.cfg.Jail}}, nil
}

// list tells a daemon what there is, a part at a time.
func (s *Server) list(_ *wire.Message, q wire.List) (*result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.AppendSeq(slices.Collect(maps.Keys(s.sources)), maps.Keys(s.vms))
	ids = slices.DeleteFunc(ids, func(id uint64) bool { return id <= q.After })
	slices.Sort(ids)
	p := part{common: make(map[string]int)}
	for i, id := range ids {
		if p.size >= wire.StateBytes {
			p.Next = ids[i-1]
			break
		}
		if o := s.sources[id]; o != nil {
			p.addSource(s.describe(o))
		}
		if v := s.vms[id]; v != nil {
			p.addVM(v)
		}
	}
	return &result{body: p.State}, nil
}

// part is a State that is put together.
type part struct {
	wire.State
	size   int            // about how many bytes it is
	common map[string]int // what is in Common, as wire.VM.Common is
}

// Bytes that a source or a machine, and the number of a layer, take besides notes.
const (
	partEntry = 256
	partLayer = 21
)

func (p *part) addSource(d wire.Source) {
	p.Sources = append(p.Sources, d)
	p.size += partEntry + len(d.Note) + partLayer*(len(d.Memory.Layers)+len(d.Scratch.Layers)+len(d.Root.Layers))
}

func (p *part) addVM(v *vm) {
	v.mu.Lock()
	d := wire.VM{ID: v.id, Source: v.source, Note: v.note, Zero: v.zero, Ended: v.ended}
	v.mu.Unlock()
	if d.Zero == 0 {
		d.Age = v.machine.Age().Nanoseconds()
	}
	if len(v.common) > 0 {
		d.Common = p.common[string(v.common)]
		if d.Common == 0 {
			p.Common = append(p.Common, v.common)
			d.Common = len(p.Common)
			p.common[string(v.common)] = d.Common
			p.size += len(v.common)
		}
	}
	p.VMs = append(p.VMs, d)
	p.size += partEntry + len(d.Note)
}
