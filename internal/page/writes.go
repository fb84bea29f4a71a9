package page

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// writes finds out which pages of private memory were written. The host makes a page of
// its own for a private mapping when it is written first; that can be asked at any time.
// From Linux 6.7 on the host can also watch: it protects pages from being written, and
// takes the protection off, without anybody noticing, when one is.
type writes struct {
	mem     []byte
	watched bool // the host may be asked to watch pages of mem
	taken   bool // it watches those that take returned last
}

// run is pages that follow each other.
type run struct {
	first Number
	pages Number
}

type runs []run

// numbers iterates over the pages, in ascending order.
func (r runs) numbers(yield func(Number) bool) {
	for _, x := range r {
		for n := range x.pages {
			if !yield(x.first + n) {
				return
			}
		}
	}
}

// watch has the host watch writes from the next take on, if it can.
func (w *writes) watch() bool {
	if !w.watched {
		h, err := openHost()
		w.watched = err == nil && h.watch(w.mem)
	}
	return w.watched
}

// forget has the next take return all pages.
func (w *writes) forget() { w.taken = false }

// all returns the pages that were written since the memory was mapped; where nothing is
// mapped from a file, an old kernel lists pages that were only read as well.
func (w *writes) all() (runs, error) {
	h, err := openHost()
	if err != nil {
		return nil, err
	}
	if !h.scans {
		return h.pagemapRuns(w.mem)
	}
	return h.scan(w.mem, 0, 0)
}

// take returns the pages that were written since the last take, or since the memory was
// mapped if there was none or the host does not watch. A page that is written during the
// call is returned by this take or the next one.
func (w *writes) take() (runs, error) {
	if !w.watched {
		return w.all()
	}
	h, err := openHost()
	if err != nil {
		return nil, err
	}
	category := uint64(0)
	if w.taken {
		category = pageWritten
	}
	pages, err := h.scan(w.mem, scanProtect|scanCheck, category)
	w.taken = err == nil
	return pages, err
}

// host is how the host is asked about the memory of this process.
type host struct {
	pagemap *os.File // /proc/self/pagemap
	scans   bool     // it takes the request that lists pages of a kind
	faults  int      // a descriptor for watching writes; -1 if that is not possible
}

// openHost opens what the host is asked with, once for the process.
var openHost = sync.OnceValues(func() (*host, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	h := &host{pagemap: f, faults: -1}
	if _, err := h.scan(zero[:], 0, 0); err == nil {
		h.scans = true
		h.faults = openFaults()
	}
	return h, nil
})

// PrepareFlats opens what a Flat asks the host with. It is for a process that will not
// be able to open anything by then.
func PrepareFlats() error {
	_, err := openHost()
	return err
}

// Requests returns the numbers of the ioctl requests that a Flat makes of what PrepareFlats
// has opened.
func Requests() []uint32 { return []uint32{requestScan, requestEnable, requestRegister} }

// Bits of an entry of /proc/self/pagemap (the kernel's
// Documentation/admin-guide/mm/pagemap).
const (
	pagemapPresent = 1 << 63
	pagemapSwapped = 1 << 62
	pagemapFile    = 1 << 61 // of a file, or of shared memory
	pagemapEntry   = 8       // bytes
)

// pagemapRuns returns the pages that the host has copied or made for a mapping alone,
// from the table that has an entry for each page.
func (h *host) pagemapRuns(mem []byte) (found runs, err error) {
	const atOnce = 8 << 10 // pages
	buf := make([]byte, atOnce*pagemapEntry)
	first := int64(address(mem) / Size)
	for n := 0; n < len(mem)/Size; n += atOnce {
		want := min(atOnce, len(mem)/Size-n) * pagemapEntry
		if _, err := h.pagemap.ReadAt(buf[:want], (first+int64(n))*pagemapEntry); err != nil {
			return nil, fmt.Errorf("reading the table of pages: %w", err)
		}
		for i := range want / pagemapEntry {
			e := binary.NativeEndian.Uint64(buf[i*pagemapEntry:])
			if e&(pagemapPresent|pagemapSwapped) != 0 && e&pagemapFile == 0 {
				found = found.add(Number(n+i), 1)
			}
		}
	}
	return found, nil
}

// add appends pages that come behind those that are there.
func (r runs) add(first, pages Number) runs {
	if k := len(r) - 1; k >= 0 && r[k].first+r[k].pages == first {
		r[k].pages += pages
		return r
	}
	return append(r, run{first, pages})
}

// scan returns the pages that the host has copied or made for a mapping alone and that
// are of a category, if that is not zero. Flags can have it protect them.
func (h *host) scan(mem []byte, flags, category uint64) (found runs, err error) {
	var regions [256]scanRegion
	base := uint64(address(mem))
	arg := scanRequest{
		flags: flags, start: base, end: base + uint64(len(mem)),
		// Neither of a file nor the page of zeros that all share.
		inverted: pageOfFile | pageOfZeros, mask: category | pageOfFile | pageOfZeros,
		anyOf: pagePresent | pageSwapped,
	}
	for arg.start < arg.end {
		n, err := pagemapScan(int(h.pagemap.Fd()), &arg, regions[:])
		if err != nil {
			return nil, fmt.Errorf("listing pages of memory: %w", err)
		}
		for _, r := range regions[:n] {
			found = found.add(Number((r.start-base)/Size), Number((r.end-r.start)/Size))
		}
		arg.start = arg.walkEnd
	}
	return found, nil
}

// watch makes it possible to protect the pages of a mapping. The mapping takes that
// with it when it goes.
func (h *host) watch(mem []byte) bool { return h.faults >= 0 && registerFaults(h.faults, mem) == nil }

// openFaults returns a descriptor for watching, or -1. One that serves the writes of
// programs only is all that it takes, which needs no privilege: nobody has to be told of
// a write, and those of the kernel are noted all the same.
func openFaults() int {
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|faultsUserOnly, 0, 0)
	if e != 0 {
		return -1
	}
	if err := enableFaults(int(fd)); err != nil {
		unix.Close(int(fd))
		return -1
	}
	return int(fd)
}
