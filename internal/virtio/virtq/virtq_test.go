package virtq_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
	"github.com/forkd-dev/forkd/internal/virtio/virtq"
)

const (
	base  = 0x8000_0000
	pages = 8192

	desc  = base
	avail = base + 0x1000
	used  = base + 0x2000
	data  = base + 0x10_0000
)

// ring is a queue and the guest memory that its driver writes.
type ring struct {
	t     testing.TB
	mem   *memory.Space
	ram   *page.Overlay
	q     virtq.Queue
	added uint16
}

func newRing(t testing.TB, size uint16, features uint64) *ring {
	t.Helper()
	ram := virtiotest.NewOverlay(t, pages, 0)
	mem, err := memory.NewSpace(memory.Slot{Base: base, Pages: ram})
	if err != nil {
		t.Fatal(err)
	}
	r := &ring{t: t, mem: mem, ram: ram}
	r.q.Init(mem, 256)
	r.q.Layout = virtq.Layout{Size: size, Desc: desc, Avail: avail, Used: used}
	if err := r.q.Enable(features); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *ring) write(gpa uint64, b []byte) {
	r.t.Helper()
	if err := r.mem.Write(gpa, b); err != nil {
		r.t.Fatal(err)
	}
}

func (r *ring) put(i uint16, gpa uint64, size uint32, flags, next uint16) {
	b := binary.LittleEndian.AppendUint64(nil, gpa)
	b = binary.LittleEndian.AppendUint32(b, size)
	b = binary.LittleEndian.AppendUint16(b, flags)
	r.write(desc+16*uint64(i), binary.LittleEndian.AppendUint16(b, next))
}

func (r *ring) offer(head uint16) {
	r.write(avail+4+2*uint64(r.added%r.q.Size), binary.LittleEndian.AppendUint16(nil, head))
	r.added++
	r.write(avail+2, binary.LittleEndian.AppendUint16(nil, r.added))
}

func (r *ring) pop() *virtq.Chain {
	r.t.Helper()
	c, err := r.q.Pop()
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

const (
	next     = virtiotest.FlagNext
	write    = virtiotest.FlagWrite
	indirect = virtiotest.FlagIndirect
)

func TestReaderAndWriterCrossBuffersAndPages(t *testing.T) {
	r := newRing(t, 8, 0)
	// 100 bytes over a page border, then 3, to be read; 5 over a border and
	// 5000 to be written.
	r.put(0, data+page.Size-40, 100, next, 3)
	r.put(3, data+3*page.Size, 3, next, 1)
	r.put(1, data+5*page.Size-2, 5, next|write, 2)
	r.put(2, data+6*page.Size+1, 5000, write, 0)
	sent := bytes.Repeat([]byte("0123456789"), 10)
	r.write(data+page.Size-40, sent)
	r.write(data+3*page.Size, []byte("end"))
	r.offer(0)

	c := r.pop()
	if c.Readable.Len() != 103 || c.Writable.Len() != 5005 {
		t.Fatalf("chain has %d and %d bytes", c.Readable.Len(), c.Writable.Len())
	}
	again := c.Readable
	got := make([]byte, 103)
	if err := c.Readable.ReadFull(got); err != nil || string(got) != string(sent)+"end" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := c.Readable.ReadFull(got[:1]); !errors.Is(err, virtq.ErrMalformed) {
		t.Errorf("reading past the end: %v", err)
	}
	// A copy goes on from where it was made, in pieces that end with pages.
	again.Skip(38)
	var sizes []int
	for {
		b, err := again.Next(40)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			break
		}
		sizes = append(sizes, len(b))
	}
	if want := []int{2, 40, 20, 3}; !slices.Equal(sizes, want) {
		t.Errorf("pieces of %v bytes, want %v", sizes, want)
	}

	reply := bytes.Repeat([]byte("abcdefg"), 715)
	tail := c.Writable
	if err := c.Writable.WriteFull(reply); err != nil || c.Writable.Len() != 0 {
		t.Fatalf("%d left, %v", c.Writable.Len(), err)
	}
	if b, err := c.Writable.Next(1); b != nil || err != nil {
		t.Errorf("room past the end: %v, %v", b, err)
	}
	tail.Skip(5004)
	if err := tail.WriteFull([]byte("!!")); !errors.Is(err, virtq.ErrMalformed) {
		t.Errorf("writing past the end: %v", err)
	}
	if err := tail.WriteFull([]byte("!")); err != nil {
		t.Fatal(err)
	}
	reply[5004] = '!'
	back := make([]byte, 5005)
	r.mem.Read(data+5*page.Size-2, back[:5])
	r.mem.Read(data+6*page.Size+1, back[5:])
	if !bytes.Equal(back, reply) {
		t.Error("guest memory differs from what was written")
	}

	if err := r.q.Push(c, 5005); err != nil {
		t.Fatal(err)
	}
	entry := make([]byte, 12)
	r.mem.Read(used, entry)
	if want := []byte{0, 0, 1, 0, 0, 0, 0, 0, 0x8d, 0x13, 0, 0}; !bytes.Equal(entry, want) {
		t.Errorf("used ring is %v, want %v", entry, want)
	}
	if r.pop() != nil {
		t.Error("the chain comes twice")
	}
}

func TestTruncate(t *testing.T) {
	r := newRing(t, 8, 0)
	r.put(0, data, 10, next, 1)
	r.put(1, data+100, 10, 0, 0)
	r.offer(0)
	c := r.pop()
	c.Readable.Truncate(13)
	var n int
	for {
		b, err := c.Readable.Next(100)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			break
		}
		n += len(b)
	}
	if n != 13 {
		t.Errorf("read %d bytes of 13", n)
	}
}

func TestDirectThenIndirect(t *testing.T) {
	// A chain may end with an indirect descriptor (virtio 2.7.5.3.1).
	r := newRing(t, 4, virtq.FeatureIndirect)
	table := binary.LittleEndian.AppendUint64(nil, data)
	table = append(table, 7, 0, 0, 0, 0, 0, 0, 0)
	r.write(data+0x1000, table)
	r.put(0, data+64, 1, next, 2)
	r.put(2, data+0x1000, 16, indirect, 0)
	r.offer(0)
	if c := r.pop(); c.Readable.Len() != 8 {
		t.Errorf("chain of %d bytes, want 8", c.Readable.Len())
	}
}

func TestAsManyBuffersAsTheQueueHasEntries(t *testing.T) {
	r := newRing(t, 4, 0)
	for i := range uint16(4) {
		r.put(i, data, 1, next, i+1)
	}
	r.put(3, data, 1, 0, 0)
	r.offer(0)
	if c := r.pop(); c.Readable.Len() != 4 {
		t.Errorf("chain of %d bytes, want 4", c.Readable.Len())
	}
}

func TestTheSameBufferTwiceIsLegal(t *testing.T) {
	r := newRing(t, 4, 0)
	r.put(0, data, 512, next|write, 1)
	r.put(1, data, 512, write, 0)
	r.offer(0)
	if c := r.pop(); c.Writable.Len() != 1024 {
		t.Errorf("chain of %d bytes, want 1024", c.Writable.Len())
	}
}

func TestUnpop(t *testing.T) {
	r := newRing(t, 4, 0)
	r.put(2, data, 5, 0, 0)
	r.offer(2)
	r.pop()
	r.q.Unpop()
	if c := r.pop(); c == nil || c.Readable.Len() != 5 {
		t.Error("a chain that was given back does not come again")
	}
}

func TestQuota(t *testing.T) {
	r := newRing(t, 256, 0)
	r.put(0, data, 512<<10, 0, 0)
	for range 5 {
		r.offer(0)
	}
	taken := func() (n int) {
		r.q.Refill()
		for {
			c := r.pop()
			if c == nil {
				return n
			}
			if err := r.q.Push(c, 0); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	for i, want := range []struct {
		n         int
		throttled bool
	}{{2, true}, {2, true}, {1, false}, {0, false}} {
		if n := taken(); n != want.n || r.q.Throttled() != want.throttled {
			t.Errorf("round %d: took %d, held back: %t; want %v", i, n, r.q.Throttled(), want)
		}
	}
	r.q.Charge(1 << 20)
	r.offer(0)
	if r.pop() != nil || !r.q.Throttled() {
		t.Error("charged work does not count")
	}
}

func TestHostWithoutPages(t *testing.T) {
	ram := virtiotest.NewOverlay(t, pages, 2) // room for the rings' pages only
	mem, err := memory.NewSpace(memory.Slot{Base: base, Pages: ram})
	if err != nil {
		t.Fatal(err)
	}
	r := &ring{t: t, mem: mem}
	r.q.Init(mem, 4)
	r.q.Layout = virtq.Layout{Size: 4, Desc: desc, Avail: avail, Used: used}
	if err := r.q.Enable(0); err != nil {
		t.Fatal(err)
	}
	r.put(0, data, 16, write, 0)
	r.offer(0)
	c := r.pop()
	if err := c.Writable.WriteFull(make([]byte, 16)); !errors.Is(err, page.ErrQuota) {
		t.Errorf("writing without pages: %v", err)
	}
	if err := r.q.Push(c, 0); !errors.Is(err, page.ErrQuota) {
		t.Errorf("ending a chain without pages: %v", err)
	}
}

func TestArmDirtiesNothingTwice(t *testing.T) {
	r := newRing(t, 8, virtq.FeatureEventIdx)
	r.put(0, data, 1, 0, 0)
	r.offer(0)
	r.q.Push(r.pop(), 0)
	r.pop()
	r.ram.Seal().Release()
	for range 3 {
		if r.pop() != nil {
			t.Fatal("a chain out of nothing")
		}
	}
	if n := r.ram.Pages(); n != 0 {
		t.Errorf("looking at an idle queue wrote to %d pages", n)
	}
}

func TestNoAllocationPerRequest(t *testing.T) {
	r := newRing(t, 8, virtq.FeatureEventIdx|virtq.FeatureIndirect)
	r.put(0, data, 64, next, 1)
	r.put(1, data+64, 64, write, 0)
	var in, out [64]byte
	round := func() {
		r.q.Refill()
		c, err := r.q.Pop()
		if err != nil || c == nil {
			t.Fatal(c, err)
		}
		if err := errors.Join(c.Readable.ReadFull(in[:]), c.Writable.WriteFull(out[:]), r.q.Push(c, 64)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.q.TakeInterrupt(); err != nil {
			t.Fatal(err)
		}
		r.pop()
	}
	r.offer(0)
	round()
	driver := testing.AllocsPerRun(100, func() { r.offer(0); r.q.Pop(); r.q.Unpop(); r.added-- })
	both := testing.AllocsPerRun(100, func() { r.offer(0); round() })
	if both > driver {
		t.Errorf("%.1f allocations per request", both-driver)
	}
}

// FuzzPop reads chains out of arbitrary rings: whatever Pop returns lies in
// RAM and keeps the package's invariants.
func FuzzPop(f *testing.F) {
	entry := func(gpa uint64, size uint32, flags, next uint16) []byte {
		b := binary.LittleEndian.AppendUint64(nil, gpa)
		b = binary.LittleEndian.AppendUint32(b, size)
		b = binary.LittleEndian.AppendUint16(b, flags)
		return binary.LittleEndian.AppendUint16(b, next)
	}
	f.Add(slices.Concat(entry(data, 16, next, 1), entry(data+16, 16, write, 0)), []byte{0, 0, 1, 0, 0, 0})
	f.Add(entry(desc+16, 48, indirect, 0), []byte{0, 0, 1, 0, 0, 0})
	f.Add(entry(data, 1<<31, 0, 0), []byte{0, 0, 9, 0, 0, 0})
	f.Fuzz(func(t *testing.T, descs, ringBytes []byte) {
		r := newRing(t, 8, virtq.FeatureEventIdx|virtq.FeatureIndirect)
		r.write(desc, descs[:min(len(descs), 0x1000)])
		r.write(avail, ringBytes[:min(len(ringBytes), 0x1000)])
		for range 10 {
			r.q.Refill()
			c, err := r.q.Pop()
			if err != nil && !errors.Is(err, virtq.ErrMalformed) {
				t.Fatalf("error of the wrong kind: %v", err)
			}
			if err != nil || c == nil {
				return
			}
			if n := c.Readable.Len() + c.Writable.Len(); n == 0 || n > virtq.MaxChain {
				t.Fatalf("chain of %d bytes", n)
			}
			for c.Readable.Len() > 0 {
				if _, err := c.Readable.Next(1 << 20); err != nil {
					t.Fatal(err)
				}
			}
			size := c.Writable.Len()
			for c.Writable.Len() > 0 {
				if _, err := c.Writable.Next(1 << 20); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.q.Push(c, size); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkPopPush(b *testing.B) {
	r := newRing(b, 8, virtq.FeatureEventIdx)
	r.put(0, data, 16, next, 1)
	r.put(1, data+64, 64, write, 0)
	for b.Loop() {
		r.offer(0)
		r.q.Refill()
		c, err := r.q.Pop()
		if err != nil {
			b.Fatal(err)
		}
		if err := r.q.Push(c, 64); err != nil {
			b.Fatal(err)
		}
	}
}
