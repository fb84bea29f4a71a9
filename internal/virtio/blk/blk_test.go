package blk_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/rate"
	"github.com/forkd-dev/forkd/internal/virtio/blk"
	"github.com/forkd-dev/forkd/internal/virtio/mmio"
	"github.com/forkd-dev/forkd/internal/virtio/virtiotest"
)

const (
	diskPages = 64
	sectors   = diskPages * 8

	typeIn, typeOut, typeFlush, typeGetID, typeDiscard, typeZeroes = 0, 1, 4, 8, 11, 13

	ok, ioError, unsupported = 0, 1, 2
)

// disk is a writable device and what is behind it.
type disk struct {
	*virtiotest.Driver
	q     *virtiotest.Queue
	pages *page.Overlay
}

func newDisk(tb testing.TB, quota int) disk {
	pages := virtiotest.NewOverlay(tb, diskPages, quota)
	d := virtiotest.NewDriver(tb, func(slot mmio.Slot) (virtiotest.Device, error) {
		return blk.New(slot, "scratch", pages, nil)
	})
	d.Start(virtiotest.Features, 128)
	return disk{d, d.Queues[0], pages}
}

// newRoot returns a read-only device over a stack whose page i is filled with i+1.
func newRoot(tb testing.TB) disk {
	pages := virtiotest.NewOverlay(tb, diskPages, 0)
	for i := range page.Number(diskPages) {
		p, _, err := pages.Write(i)
		if err != nil {
			tb.Fatal(err)
		}
		copy(p[:], bytes.Repeat([]byte{byte(i + 1)}, page.Size))
	}
	stack := pages.Seal()
	tb.Cleanup(stack.Release)
	d := virtiotest.NewDriver(tb, func(slot mmio.Slot) (virtiotest.Device, error) {
		return blk.NewReadOnly(slot, "rootfs", stack, nil)
	})
	d.Start(virtiotest.Features, 128)
	return disk{d, d.Queues[0], pages}
}

func header(kind uint32, sector uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint64(b, sector)
}

// do makes a request and returns what was read and the status.
func (d disk) do(kind uint32, sector uint64, buffers ...virtiotest.Buffer) ([]byte, byte) {
	d.TB.Helper()
	request := append([]virtiotest.Buffer{virtiotest.Out(header(kind, sector))}, buffers...)
	head := d.q.Add(append(request, virtiotest.In(1))...)
	d.q.Kick()
	d.RunPosted()
	used := d.q.Take()
	if len(used) != 1 || d.Broken() {
		d.TB.Fatalf("used entries %v, broken %t", used, d.Broken())
	}
	all := d.q.Written(head, 1<<30)
	return all[:len(all)-1], all[len(all)-1]
}

// expect makes a request of which only the status counts.
func (d disk) expect(want byte, kind uint32, sector uint64, buffers ...virtiotest.Buffer) {
	d.TB.Helper()
	if _, got := d.do(kind, sector, buffers...); got != want {
		d.TB.Errorf("request %d at sector %d: status %d, want %d", kind, sector, got, want)
	}
}

func (d disk) read(sector uint64, size int) []byte {
	d.TB.Helper()
	b, status := d.do(typeIn, sector, virtiotest.In(size))
	if status != ok {
		d.TB.Fatalf("reading %d bytes at sector %d: status %d", size, sector, status)
	}
	return b
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i/512 + i + 1)
	}
	return b
}

func subject() virtiotest.Subject {
	out := virtiotest.Out
	return virtiotest.Subject{
		New: func(tb testing.TB, slot mmio.Slot) (virtiotest.Device, error) {
			return blk.New(slot, "scratch", virtiotest.NewOverlay(tb, diskPages, 0), nil)
		},
		ID:      2,
		Request: []virtiotest.Buffer{out(header(typeOut, 3)), out(pattern(1024)), virtiotest.In(1)},
		Short: [][]virtiotest.Buffer{
			{out(header(typeIn, 0)[:15]), virtiotest.In(513)},
			{out(header(typeIn, 0))},
			{virtiotest.In(513)},
		},
	}
}

func TestConformance(t *testing.T) { virtiotest.Run(t, subject()) }

func TestLimited(t *testing.T) {
	virtiotest.RunLimited(t, subject(), func(tb testing.TB, slot mmio.Slot, l *rate.Limiter) (virtiotest.Device, error) {
		return blk.New(slot, "scratch", virtiotest.NewOverlay(tb, diskPages, 0), l)
	})
}

func FuzzDevice(f *testing.F) { virtiotest.Fuzz(f, subject()) }

func TestReadsWhatWasWritten(t *testing.T) {
	d := newDisk(t, 0)
	for _, c := range []struct {
		sector uint64
		size   int
	}{{0, 512}, {1, 512}, {7, 1024}, {8, 4096}, {13, 4096}, {100, 65536}, {sectors - 3, 1536}} {
		want := pattern(c.size)
		d.expect(ok, typeOut, c.sector, virtiotest.Out(want))
		if got := d.read(c.sector, c.size); !bytes.Equal(got, want) {
			t.Errorf("%d bytes at sector %d differ", c.size, c.sector)
		}
	}
	d.expect(ok, typeFlush, 0)
	if d.Interrupt() != virtiotest.InterruptQueue {
		t.Error("no interrupt")
	}
}

func TestBuffersMayBeCutAnywhere(t *testing.T) {
	d := newDisk(t, 0)
	want := pattern(4096)
	h := header(typeOut, 5)
	d.q.Do(
		virtiotest.Out(h[:3]), virtiotest.Out(append(h[3:], want[:1]...)),
		virtiotest.Out(want[1:700]), virtiotest.Out(want[700:]), virtiotest.In(1),
	)
	got := d.q.Do(virtiotest.Out(header(typeIn, 5)), virtiotest.In(100), virtiotest.In(3000), virtiotest.In(997))
	if !bytes.Equal(got[:4096], want) || got[4096] != ok {
		t.Error("data differs, or the status does not follow it")
	}
}

// The model of a disk is a slice.
func TestAgainstAModel(t *testing.T) {
	d := newDisk(t, 0)
	model := make([]byte, sectors*512)
	rnd := rand.New(rand.NewPCG(1, 2))
	for step := range 3000 {
		sector := rnd.IntN(sectors)
		n := 1 + rnd.IntN(min(40, sectors-sector))
		part := model[sector*512:][:n*512]
		switch rnd.IntN(6) {
		case 0:
			d.expect(ok, typeDiscard, 0, virtiotest.Out(extent(uint64(sector), uint32(n), 0)))
			clear(part)
		case 1:
			d.expect(ok, typeZeroes, 0, virtiotest.Out(extent(uint64(sector), uint32(n), rnd.Uint32()&1)))
			clear(part)
		case 2, 3:
			for i := range part {
				part[i] = byte(rnd.Uint32())
			}
			d.expect(ok, typeOut, uint64(sector), virtiotest.Out(part))
		default:
			if !bytes.Equal(d.read(uint64(sector), n*512), part) {
				t.Fatalf("step %d: %d sectors at %d differ", step, n, sector)
			}
		}
	}
}

func extent(sector uint64, count, flags uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, sector)
	b = binary.LittleEndian.AppendUint32(b, count)
	return binary.LittleEndian.AppendUint32(b, flags)
}

func TestErrorsAreAStatus(t *testing.T) {
	out, in := virtiotest.Out, virtiotest.In
	for name, c := range map[string]struct {
		want   byte
		kind   uint32
		sector uint64
		data   []virtiotest.Buffer
	}{
		"read beyond the end":       {ioError, typeIn, sectors, []virtiotest.Buffer{in(512)}},
		"read across the end":       {ioError, typeIn, sectors - 1, []virtiotest.Buffer{in(1024)}},
		"read at a wrapping sector": {ioError, typeIn, 1 << 55, []virtiotest.Buffer{in(512)}},
		"read at the last sector":   {ioError, typeIn, ^uint64(0), []virtiotest.Buffer{in(1024)}},
		"read half a sector":        {ioError, typeIn, 0, []virtiotest.Buffer{in(256)}},
		"read nothing":              {ioError, typeIn, 0, nil},
		"write beyond the end":      {ioError, typeOut, sectors, []virtiotest.Buffer{out(pattern(512))}},
		"write half a sector":       {ioError, typeOut, 0, []virtiotest.Buffer{out(pattern(100))}},
		"write nothing":             {ioError, typeOut, 0, nil},
		"short id":                  {ioError, typeGetID, 0, []virtiotest.Buffer{in(19)}},
		"unknown request":           {unsupported, 99, 0, nil},
		"zone report":               {unsupported, 16, 0, []virtiotest.Buffer{in(512)}},
		"discard beyond the end":    {ioError, typeDiscard, 0, []virtiotest.Buffer{out(extent(sectors, 1, 0))}},
		"discard wraps":             {ioError, typeDiscard, 0, []virtiotest.Buffer{out(extent(^uint64(0), 2, 0))}},
		"discard too much":          {ioError, typeDiscard, 0, []virtiotest.Buffer{out(extent(0, 1<<31, 0))}},
		"discard with unmap":        {unsupported, typeDiscard, 0, []virtiotest.Buffer{out(extent(0, 1, 1))}},
		"discard unknown flag":      {unsupported, typeDiscard, 0, []virtiotest.Buffer{out(extent(0, 1, 2))}},
		"zeroes unknown flag":       {unsupported, typeZeroes, 0, []virtiotest.Buffer{out(extent(0, 1, 4))}},
		"discard of two":            {ioError, typeDiscard, 0, []virtiotest.Buffer{out(make([]byte, 32))}},
		"discard of half":           {ioError, typeDiscard, 0, []virtiotest.Buffer{out(make([]byte, 8))}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, 0)
			d.expect(ok, typeOut, 0, virtiotest.Out(pattern(sectors*512/8)))
			before := d.pages.Pages()
			d.expect(c.want, c.kind, c.sector, c.data...)
			if d.pages.Pages() != before || !bytes.Equal(d.read(0, sectors*512/8), pattern(sectors*512/8)) {
				t.Error("the disk has changed")
			}
		})
	}
}

func TestReadOnlyDisk(t *testing.T) {
	d := newRoot(t)
	if d.Offered()&(1<<5) == 0 || d.Offered()&(1<<9|1<<13|1<<14) != 0 {
		t.Errorf("features %#x", d.Offered())
	}
	got := d.read(8*3+1, 8192)
	want := bytes.Repeat([]byte{4}, 4096-512)
	want = append(want, bytes.Repeat([]byte{5}, 4096)...)
	want = append(want, bytes.Repeat([]byte{6}, 512)...)
	if !bytes.Equal(got, want) {
		t.Error("contents differ")
	}
	d.expect(ioError, typeOut, 0, virtiotest.Out(pattern(512)))
	d.expect(ioError, typeDiscard, 0, virtiotest.Out(extent(0, 8, 0)))
	d.expect(ioError, typeZeroes, 0, virtiotest.Out(extent(0, 8, 0)))
	d.expect(ok, typeFlush, 0)
	if d.pages.Pages() != 0 {
		t.Error("a read-only disk was written")
	}
}

func TestQuotaIsAnIOError(t *testing.T) {
	d := newDisk(t, 2)
	d.expect(ok, typeOut, 0, virtiotest.Out(pattern(8192)))
	d.expect(ioError, typeOut, 100, virtiotest.Out(pattern(512)))
	d.expect(ok, typeOut, 8, virtiotest.Out(pattern(4096)))
	d.expect(ok, typeDiscard, 0, virtiotest.Out(extent(0, sectors, 0)))
	if got := d.read(0, 8192); !bytes.Equal(got, make([]byte, 8192)) {
		t.Error("discarded sectors are not zero")
	}
}

// Pages that are discarded can be used for something else: by a discard of whole pages,
// and by a write of zeros that allows it, but by no other.
func TestDiscardMakesRoom(t *testing.T) {
	d := newDisk(t, 2)
	for name, c := range map[string]struct {
		kind, count, flags uint32
		room               bool
	}{
		"discard":                  {typeDiscard, 16, 0, true},
		"discard of a part":        {typeDiscard, 7, 0, false},
		"zeros that may give back": {typeZeroes, 16, 1, true},
		"zeros that may not":       {typeZeroes, 16, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			d.expect(ok, typeDiscard, 0, virtiotest.Out(extent(0, sectors, 0)))
			d.expect(ok, typeOut, 0, virtiotest.Out(pattern(8192)))
			d.expect(ioError, typeOut, 64, virtiotest.Out(pattern(8192)))
			if got := d.read(0, 8192); !bytes.Equal(got, pattern(8192)) {
				t.Error("the disk has changed")
			}
			d.expect(ok, c.kind, 0, virtiotest.Out(extent(0, c.count, c.flags)))
			want := byte(ioError)
			if c.room {
				want = ok
			}
			d.expect(want, typeOut, 64, virtiotest.Out(pattern(8192)))
			if got := d.read(0, int(c.count)*512); !bytes.Equal(got, make([]byte, c.count*512)) {
				t.Error("what was cleared is not zero")
			}
		})
	}
}

// The limit holds across a seal, in which the pages go into a layer.
func TestQuotaAfterASeal(t *testing.T) {
	d := newDisk(t, 2)
	d.expect(ok, typeOut, 0, virtiotest.Out(pattern(4096)))
	d.pages.Seal().Release()
	d.expect(ok, typeOut, 8, virtiotest.Out(pattern(4096)))
	d.expect(ok, typeOut, 0, virtiotest.Out(pattern(4096)))
	d.expect(ioError, typeOut, 16, virtiotest.Out(pattern(4096)))
}

// Both disks of a machine share a bound: neither starves the other.
func TestTwoDisksShareALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := rate.NewLimiter(64 << 10)
		var disks []disk
		for range 2 {
			pages := virtiotest.NewOverlay(t, diskPages, 0)
			d := virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
				return blk.New(slot, "scratch", pages, limiter)
			})
			d.Start(virtiotest.Features, 128)
			disks = append(disks, disk{d, d.Queues[0], pages})
		}
		served := make([]int, len(disks))
		end := time.After(20 * time.Second)
		for done := false; !done; {
			for i, d := range disks {
				d.RunPosted()
				served[i] += len(d.q.Take())
				for n := int(d.q.AvailIndex()) - served[i]; n < 8; n++ { // they always want more
					d.q.Add(virtiotest.Out(header(typeIn, 0)), virtiotest.In(4096), virtiotest.In(1))
				}
				d.q.Kick()
			}
			select {
			case <-disks[0].Posted():
			case <-disks[1].Posted():
			case <-end:
				done = true
			}
		}
		if n := served[0] + served[1]; n < 280 || n > 330 || served[0] < n/3 || served[1] < n/3 {
			t.Errorf("served %v requests in 20 s, want 320 of both together", served)
		}
		limiter.Close()
	})
}

func TestZerosAreNotStored(t *testing.T) {
	d := newDisk(t, 0)
	d.expect(ok, typeOut, 0, virtiotest.Out(make([]byte, 65536)))
	d.expect(ok, typeZeroes, 0, virtiotest.Out(extent(200, 200, 1)))
	d.expect(ok, typeDiscard, 0, virtiotest.Out(extent(0, sectors, 0)))
	if n := d.pages.Pages(); n != 0 {
		t.Errorf("zeros take %d pages", n)
	}
}

func TestSerialAndCapacity(t *testing.T) {
	d := newDisk(t, 0)
	id, status := d.do(typeGetID, 0, virtiotest.In(20))
	if got := strings.TrimRight(string(id), "\x00"); status != ok || got != "scratch" {
		t.Errorf("serial %q, status %d", got, status)
	}
	for at, want := range map[uint64]uint64{0: sectors, 8: 64 << 10, 12: 126, 20: 512, 36: 32768, 40: 1, 44: 8, 48: 32768, 52: 1} {
		if got := d.Dev.Read(virtiotest.RegConfig+at, 4); got != want {
			t.Errorf("configuration at %d: %d, want %d", at, got, want)
		}
	}
	_, err := blk.New(mmio.Slot{Memory: d.Mem}, strings.Repeat("x", 21), d.pages, nil)
	if err == nil {
		t.Error("a serial of 21 bytes was taken")
	}
}

func TestTwoReadsIntoOneBuffer(t *testing.T) {
	d := newRoot(t)
	at := d.Alloc(512)
	b := virtiotest.Buffer{Size: 512, GPA: at}
	d.q.Do(virtiotest.Out(header(typeIn, 7)), b, b, virtiotest.In(1))
	if got := d.Bytes(at, 512); got[0] != 2 {
		t.Errorf("buffer has %d, want the later sector's 2", got[0])
	}
}

func TestOtherRequestsGoOnAfterAnError(t *testing.T) {
	d := newDisk(t, 0)
	request := func(sector uint64) uint16 {
		return d.q.Add(virtiotest.Out(header(typeOut, sector)), virtiotest.Out(pattern(512)), virtiotest.In(1))
	}
	heads := []uint16{request(0), request(sectors), request(1)}
	d.q.Kick()
	for i, want := range []byte{ok, ioError, ok} {
		if got := d.q.Written(heads[i], 1)[0]; got != want {
			t.Errorf("request %d: status %d, want %d", i, got, want)
		}
	}
	if len(d.q.Take()) != 3 {
		t.Error("not all requests were answered")
	}
}

func TestRestoreNeedsADiskLikeIt(t *testing.T) {
	var other *page.Overlay
	d := virtiotest.NewDriver(t, func(slot mmio.Slot) (virtiotest.Device, error) {
		if slot.State != nil {
			return blk.New(slot, "scratch", other, nil)
		}
		return blk.New(slot, "scratch", virtiotest.NewOverlay(t, diskPages, 0), nil)
	})
	saved := d.State()
	other = virtiotest.NewOverlay(t, diskPages+1, 0)
	if err := d.TryRestore(saved); err == nil || !strings.Contains(err.Error(), "disk had 512 sectors") {
		t.Errorf("a disk of another size: %v", err)
	}
	other = virtiotest.NewOverlay(t, diskPages, 0)
	d.Restore(saved)
}

// repeat returns a function that makes the same read request each time, with as
// little work for the driver as there can be.
func repeat(d disk, size int) func() {
	b := []virtiotest.Buffer{virtiotest.Out(header(typeIn, 8))}
	for range size / 4096 {
		b = append(b, virtiotest.In(4096))
	}
	d.q.Add(append(b, virtiotest.In(1))...)
	for i := range d.q.Size { // every entry of the available ring is head 0
		d.Fill(d.q.Avail+4+2*uint64(i), []byte{0, 0})
	}
	d.q.Kick()
	return func() {
		d.q.SetAvail(d.q.AvailIndex() + 1)
		d.q.Kick()
		d.Set(virtiotest.RegInterruptAck, 3)
	}
}

func TestNoAllocationPerRequest(t *testing.T) {
	d := newRoot(t)
	request := testing.AllocsPerRun(100, repeat(d, 4096))
	driver := testing.AllocsPerRun(100, func() { d.q.SetAvail(d.q.AvailIndex()) })
	if d.Broken() || request > driver {
		t.Errorf("%.0f allocations per request, of which the driver's %.0f", request, driver)
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4096, 128 << 10} {
		b.Run(fmt.Sprintf("%dK", size>>10), func(b *testing.B) {
			d := newRoot(b)
			request := repeat(d, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				request()
			}
			if d.Broken() {
				b.Fatal("device is broken")
			}
		})
	}
}
