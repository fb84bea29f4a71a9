package virtiotest

import "encoding/binary"

// Flags of a descriptor.
const (
	FlagNext     = 1
	FlagWrite    = 2
	FlagIndirect = 4
)

// Desc is a descriptor as it lies in guest memory.
type Desc struct {
	GPA   uint64
	Size  uint32
	Flags uint16
	Next  uint16
}

func (x Desc) bytes() []byte {
	b := binary.LittleEndian.AppendUint64(nil, x.GPA)
	b = binary.LittleEndian.AppendUint32(b, x.Size)
	b = binary.LittleEndian.AppendUint16(b, x.Flags)
	return binary.LittleEndian.AppendUint16(b, x.Next)
}

// Buffer is one buffer of a request: either Data, which the device reads, or
// room for Size bytes, which it writes.
type Buffer struct {
	Data []byte
	Size int
	GPA  uint64 // where it lies, or 0 to let the driver choose
}

// Out and In make buffers that the device reads and writes.
func Out(b []byte) Buffer { return Buffer{Data: b} }

// In makes a buffer of size bytes that the device writes.
func In(size int) Buffer { return Buffer{Size: size} }

// Used is an entry of the used ring.
type Used struct {
	Head uint16
	Size uint32 // bytes that the device wrote
}

// Queue is a virtqueue from the driver's side.
type Queue struct {
	Index             uint32
	Size              uint16
	Desc, Avail, Used uint64 // where the parts lie

	d        *Driver
	eventIdx bool
	next     uint16 // descriptor to use next
	added    uint16 // available index
	seen     uint16 // used index up to which entries were taken
	chains   map[uint16][]Buffer
}

// newQueue lays the parts like Linux: the used ring on a page of its own.
func newQueue(d *Driver, index uint32, size uint16, features uint64) *Queue {
	base := RAMBase + uint64(index)*ringSpace
	return &Queue{
		Index: index, Size: size,
		Desc: base, Avail: base + 16*uint64(size), Used: base + 0x2000,
		d: d, eventIdx: features&FeatureEventIdx != 0, chains: make(map[uint16][]Buffer),
	}
}

// Clear zeroes the queue's part of memory.
func (q *Queue) Clear() { q.d.Fill(RAMBase+uint64(q.Index)*ringSpace, make([]byte, ringSpace)) }

// Configure selects the queue and writes its size and addresses.
func (q *Queue) Configure() {
	q.d.Set(RegQueueSelect, q.Index)
	q.d.Set(RegQueueSize, uint32(q.Size))
	q.d.set64(RegQueueDesc, q.Desc)
	q.d.set64(RegQueueAvail, q.Avail)
	q.d.set64(RegQueueUsed, q.Used)
}

// Put writes descriptor i.
func (q *Queue) Put(i uint16, x Desc) { q.d.Fill(q.Desc+16*uint64(i%q.Size), x.bytes()) }

// Offer makes the chain that begins at descriptor head available.
func (q *Queue) Offer(head uint16) {
	q.d.put16(q.Avail+4+2*uint64(q.added%q.Size), head)
	q.added++
	q.SetAvail(q.added)
}

// SetAvail writes the available index.
func (q *Queue) SetAvail(index uint16) { q.added = index; q.d.put16(q.Avail+2, index) }

// Place gives each buffer a place in guest memory and writes its data there.
func (q *Queue) Place(buffers []Buffer) []Buffer {
	placed := make([]Buffer, len(buffers))
	for i, b := range buffers {
		if b.Data != nil {
			b.Size = len(b.Data)
		}
		if b.GPA == 0 {
			b.GPA = q.d.Alloc(b.Size)
		}
		if b.Data != nil {
			q.d.Fill(b.GPA, b.Data)
		}
		placed[i] = b
	}
	return placed
}

func descs(buffers []Buffer, at func(i int) uint16) []Desc {
	out := make([]Desc, len(buffers))
	for i, b := range buffers {
		x := Desc{GPA: b.GPA, Size: uint32(b.Size)}
		if b.Data == nil {
			x.Flags |= FlagWrite
		}
		if i+1 < len(buffers) {
			x.Flags |= FlagNext
			x.Next = at(i + 1)
		}
		out[i] = x
	}
	return out
}

// Add makes a request available and returns its head.
func (q *Queue) Add(buffers ...Buffer) uint16 {
	placed := q.Place(buffers)
	head := q.next
	at := func(i int) uint16 { return (head + uint16(i)) % q.Size }
	for i, x := range descs(placed, at) {
		q.Put(at(i), x)
	}
	q.next = at(len(placed))
	q.chains[head] = placed
	q.Offer(head)
	return head
}

// AddIndirect is Add through an indirect table.
func (q *Queue) AddIndirect(buffers ...Buffer) uint16 {
	placed := q.Place(buffers)
	var table []byte
	for _, x := range descs(placed, func(i int) uint16 { return uint16(i) }) {
		table = append(table, x.bytes()...)
	}
	gpa := q.d.Alloc(len(table))
	q.d.Fill(gpa, table)
	head := q.next
	q.Put(head, Desc{GPA: gpa, Size: uint32(len(table)), Flags: FlagIndirect})
	q.next = (head + 1) % q.Size
	q.chains[head] = placed
	q.Offer(head)
	return head
}

// Kick notifies the device, whether or not it asked for that.
func (q *Queue) Kick() { q.d.Set(RegQueueNotify, q.Index) }

// Wanted reports whether the device wants a kick for what was made available
// after index from.
func (q *Queue) Wanted(from uint16) bool {
	if !q.eventIdx {
		return q.d.get16(q.Used)&1 == 0
	}
	event := q.d.get16(q.Used + 4 + 8*uint64(q.Size))
	return q.added-event-1 < q.added-from
}

// AvailIndex returns the available index.
func (q *Queue) AvailIndex() uint16 { return q.added }

// SetEvent asks for an interrupt once the used index passes index, and
// SetNoInterrupt for none at all, for a queue without event indexes.
func (q *Queue) SetEvent(index uint16) { q.d.put16(q.Avail+4+2*uint64(q.Size), index) }

// SetNoInterrupt asks for no interrupts of a queue without event indexes.
func (q *Queue) SetNoInterrupt(on bool) {
	var flags uint16
	if on {
		flags = 1
	}
	q.d.put16(q.Avail, flags)
}

// Take returns the used entries that were not taken yet, and asks for an
// interrupt at the next one.
func (q *Queue) Take() []Used {
	var out []Used
	for end := q.d.get16(q.Used + 2); q.seen != end; q.seen++ {
		b := q.d.Bytes(q.Used+4+8*uint64(q.seen%q.Size), 8)
		out = append(out, Used{
			Head: uint16(binary.LittleEndian.Uint32(b)),
			Size: binary.LittleEndian.Uint32(b[4:]),
		})
	}
	if q.eventIdx {
		q.SetEvent(q.seen)
	}
	return out
}

// Written returns what the device wrote to the request with the given head:
// the first size bytes of its writable buffers.
func (q *Queue) Written(head uint16, size int) []byte {
	var out []byte
	for _, b := range q.chains[head] {
		if b.Data == nil {
			out = append(out, q.d.Bytes(b.GPA, b.Size)...)
		}
	}
	return out[:min(size, len(out))]
}

// Do makes a request, kicks, and returns what the device wrote.
func (q *Queue) Do(buffers ...Buffer) []byte {
	q.d.TB.Helper()
	head := q.Add(buffers...)
	q.Kick()
	q.d.RunPosted()
	used := q.Take()
	if len(used) != 1 || used[0].Head != head {
		q.d.TB.Fatalf("queue %d: request at %d, used entries %v, broken: %t", q.Index, head, used, q.d.Broken())
	}
	return q.Written(head, int(used[0].Size))
}
