package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/forkd-dev/forkd/internal/cell/wire"
	"github.com/forkd-dev/forkd/internal/page"
)

// registry knows layers by number.
type registry struct {
	mu      sync.Mutex
	sent    map[uint64]*page.Layer // by the daemon, a reference each; guarded by mu
	own     map[uint64]*page.Layer // others, which machines of this cell have sealed, without one; guarded by mu
	numbers map[*page.Layer]uint64 // of both; guarded by mu
	last    uint64                 // number of one of own; guarded by mu
}

func newRegistry() *registry {
	return &registry{
		sent: make(map[uint64]*page.Layer), own: make(map[uint64]*page.Layer), numbers: make(map[*page.Layer]uint64),
	}
}

// add takes over a reference to a layer that the daemon has sent.
func (r *registry) add(id uint64, l *page.Layer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.sent[id]; ok || id&wire.SealedBit != 0 {
		return fmt.Errorf("there is a layer %d already", id)
	}
	r.sent[id], r.numbers[l] = l, id
	return nil
}

// forget drops a layer that the daemon has sent.
func (r *registry) forget(id uint64) {
	r.mu.Lock()
	l := r.sent[id]
	delete(r.sent, id)
	delete(r.numbers, l)
	r.mu.Unlock()
	if l != nil {
		l.Release()
	}
}

// get returns a reference to a layer. The error wraps wire.ErrNoLayer.
func (r *registry) get(id uint64) (*page.Layer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.sent[id]
	if l == nil {
		l = r.own[id]
	}
	if l == nil || !l.TryRetain() {
		return nil, fmt.Errorf("%w: %d", wire.ErrNoLayer, id)
	}
	return l, nil
}

// describe returns a stack by the numbers of its layers. The caller has a reference to it.
func (r *registry) describe(s *page.Stack) wire.Stack {
	d := wire.Stack{Limit: s.Limit(), Layers: make([]uint64, len(s.Layers()))}
	for i, l := range s.Layers() {
		d.Layers[i] = r.number(l)
	}
	return d
}

// number returns the number of a layer, to which the caller has a reference. One that has
// none gets one, and keeps it until nobody needs it any more.
func (r *registry) number(l *page.Layer) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, ok := r.numbers[l]
	if !ok {
		r.last++
		id = r.last | wire.SealedBit
		r.numbers[l], r.own[id] = id, l
		l.OnFree(func() { r.freed(id, l) })
	}
	return id
}

// freed forgets a sealed layer that nobody needs any more.
func (r *registry) freed(id uint64, l *page.Layer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.own, id)
	delete(r.numbers, l)
}

// addLayer makes a layer known that comes as a file.
func (s *Server) addLayer(m *wire.Message, d wire.Layer) (*result, error) {
	f, err := take(m, 0)
	if err != nil {
		return nil, err
	}
	l, err := openLayer(f, d, m.Blob)
	if err != nil {
		return nil, err
	}
	if err := s.layers.add(d.ID, l); err != nil {
		l.Release()
		return nil, err
	}
	return nil, nil
}

// openLayer opens a layer as it is described. It takes over f.
func openLayer(f *os.File, d wire.Layer, blob []byte) (*page.Layer, error) {
	l, err := wire.OpenLayer(f, d, blob)
	if err != nil {
		return nil, fmt.Errorf("opening layer %d: %w", d.ID, err)
	}
	return l, nil
}

func (s *Server) forgetLayer(_ *wire.Message, r wire.Ref) (*result, error) {
	s.layers.forget(r.ID)
	return nil, nil
}

// fetch writes the pages of a sealed layer to a file of the daemon's.
func (s *Server) fetch(m *wire.Message, r wire.Ref) (*result, error) {
	f, err := take(m, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := s.layers.get(r.ID)
	if err != nil {
		return nil, err
	}
	defer func() {
		l.Release()
		s.tidySoon() // it may have been in the way
	}()
	var body wire.Fetched
	var blob []byte
	err = page.Guard(func() error {
		if err := l.WritePages(f); err != nil {
			return err
		}
		body.Limit = l.Limit()
		body.Stored, blob = wire.AppendNumbers(nil, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("handing layer %d over: %w", r.ID, err)
	}
	return &result{body: body, blob: blob}, nil
}

// fileOf hands the file of a layer back to a daemon that has lost it.
func (s *Server) fileOf(_ *wire.Message, r wire.Ref) (*result, error) {
	l, err := s.layers.get(r.ID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	body := wire.Layer{ID: r.ID, Kind: l.Kind(), Limit: l.Limit()}
	file := l.File()
	if file == nil { // it has none, or only what is mapped of it
		body.Kind = page.Sealed
		return &result{body: body}, nil
	}
	var blob []byte
	if l.Kind() == page.Pages {
		body.Stored, blob = wire.AppendNumbers(nil, l)
	}
	return &result{body: body, blob: blob, files: []*os.File{file}}, nil
}

// source is what machines are forked from.
type source struct {
	id    uint64
	vcpus int
	state []byte
	stacks
	note    json.RawMessage // guarded by Server.mu
	users   int             // who needs the stacks now; guarded by Server.mu
	dropped bool            // the last of them releases the stacks; guarded by Server.mu
}

// stacks are what the machines of a source lie over, a reference each. Those of a source
// that is known are guarded by Server.mu, and stay the same while Server.layout is held.
type stacks struct {
	memory, scratch, root *page.Stack
	// Of a cut: what the machine was made over that was cut.
	memoryBase, scratchBase *page.Stack
}

// all returns where the stacks are.
func (o *stacks) all() []**page.Stack {
	return []**page.Stack{&o.memory, &o.scratch, &o.root, &o.memoryBase, &o.scratchBase}
}

func (o *stacks) release() {
	for _, stack := range o.all() {
		if *stack != nil {
			(*stack).Release()
		}
	}
}

// retain returns references to all stacks.
func (o *stacks) retain() (list []*page.Stack) {
	for _, stack := range o.all() {
		if *stack != nil {
			list = append(list, (*stack).Retain())
		}
	}
	return list
}

// addSource makes a source of layers that are known.
func (s *Server) addSource(m *wire.Message, d wire.Source) (*result, error) {
	err := wire.CheckNote(d.Note)
	if err != nil {
		return nil, err
	}
	o := &source{id: d.ID, vcpus: d.VCPUs, state: m.Blob, note: d.Note}
	for _, x := range []struct {
		to *(*page.Stack)
		of wire.Stack
	}{{&o.memory, d.Memory}, {&o.scratch, d.Scratch}, {&o.root, d.Root}} {
		if *x.to, err = s.stack(x.of); err != nil {
			o.release()
			return nil, fmt.Errorf("making source %d: %w", d.ID, err)
		}
	}
	s.reserve.Do(func() { go s.memory.Reserve(s.cfg.Reserve) }) // without it forks are slower
	return nil, s.keep(o)
}

// keep makes a source known, which it takes over.
func (s *Server) keep(o *source) error {
	s.mu.Lock()
	_, taken := s.sources[o.id]
	if !taken {
		s.sources[o.id] = o
	}
	s.mu.Unlock()
	if taken {
		o.release()
		return fmt.Errorf("there is a source %d already", o.id)
	}
	return nil
}

// stack returns a stack of layers that are known, upon the tallest that there is
// already: its index is shared.
func (s *Server) stack(d wire.Stack) (stack *page.Stack, err error) {
	if d.Limit > page.MaxLimit {
		return nil, fmt.Errorf("an address space of %d pages is too large", d.Limit)
	}
	layers := make([]*page.Layer, 0, len(d.Layers))
	defer func() {
		for _, l := range layers {
			l.Release()
		}
	}()
	for _, id := range d.Layers {
		l, err := s.layers.get(id)
		if err != nil {
			return nil, err
		}
		if layers = append(layers, l); l.Limit() > d.Limit {
			return nil, fmt.Errorf("layer %d is of a larger address space", id)
		}
	}
	base := s.tallest(d.Limit, layers)
	defer base.Release()
	err = page.Guard(func() error { // the caller has others, which it gives up after an error
		stack = base.Push(layers[len(base.Layers()):]...)
		return nil
	})
	return stack, err
}

// tallest returns a reference to the tallest stack that others can be built upon.
func (s *Server) tallest(limit page.Number, layers []*page.Layer) *page.Stack {
	best := page.NewStack(limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.sources {
		for _, stack := range []*page.Stack{o.memory, o.scratch, o.root} {
			if have := stack.Layers(); stack.Limit() == limit && len(have) > len(best.Layers()) && isPrefix(have, layers) {
				best.Release()
				best = stack.Retain()
			}
		}
	}
	return best
}

func isPrefix(have, layers []*page.Layer) bool {
	if len(have) > len(layers) {
		return false
	}
	for i, l := range have {
		if layers[i] != l {
			return false
		}
	}
	return true
}

// source returns a source. Its stacks are there as long as it is known.
func (s *Server) source(id uint64) (*source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sourceLocked(id)
}

func (s *Server) sourceLocked(id uint64) (*source, error) {
	o := s.sources[id]
	if o == nil {
		return nil, fmt.Errorf("there is no source %d", id)
	}
	return o, nil
}

// use returns a source whose stacks are there until done is called, even if a later
// daemon has dropped it by then.
func (s *Server) use(id uint64) (o *source, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, err = s.sourceLocked(id); err != nil {
		return nil, nil, err
	}
	o.users++
	return o, func() {
		s.mu.Lock()
		o.users--
		last := o.dropped && o.users == 0
		s.mu.Unlock()
		if last {
			o.release()
			s.freed()
		}
	}, nil
}

// dropSource forgets a source. Its machines go on.
func (s *Server) dropSource(_ *wire.Message, r wire.Ref) (*result, error) {
	s.mu.Lock()
	o := s.sources[r.ID]
	delete(s.sources, r.ID)
	last := false
	if o != nil {
		o.dropped, last = true, o.users == 0
	}
	s.mu.Unlock()
	if last {
		o.release()
	}
	s.freed()
	return nil, nil
}

// stateOf returns the saved state of a source to a daemon that has lost it.
func (s *Server) stateOf(_ *wire.Message, r wire.Ref) (*result, error) {
	o, err := s.source(r.ID)
	if err != nil {
		return nil, err
	}
	return &result{blob: o.state}, nil
}

// describe returns a source as a later daemon is told of it. The caller holds s.mu, or
// nobody else knows the source.
func (s *Server) describe(o *source) wire.Source {
	d := wire.Source{
		ID: o.id, VCPUs: o.vcpus, Note: o.note,
		Memory: s.layers.describe(o.memory), Scratch: s.layers.describe(o.scratch), Root: s.layers.describe(o.root),
	}
	if o.memoryBase != nil {
		d.Memory.Base, d.Scratch.Base = len(o.memoryBase.Layers()), len(o.scratchBase.Layers())
	}
	return d
}

// stacksOf tells which layers a source consists of now.
func (s *Server) stacksOf(_ *wire.Message, r wire.Ref) (*result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.sourceLocked(r.ID)
	if err != nil {
		return nil, err
	}
	return &result{body: s.describe(o)}, nil
}

// maxFile bounds a kernel or an initramfs.
const maxFile = 512 << 20

// readAll reads a file of so many bytes.
func readAll(f *os.File, size int64) ([]byte, error) {
	if size < 0 || size > maxFile {
		return nil, fmt.Errorf("a file of %d bytes is too large", size)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("reading a file of %d bytes: %w", size, err)
	}
	return b, nil
}
