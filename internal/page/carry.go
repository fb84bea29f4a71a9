package page

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Layers reach other processes as open files: those that have a file of their own
// as that, others as a file of nothing but pages, which their holder writes with
// WritePages and the other side opens with OpenPages.

// Kind is what the file behind a layer is.
type Kind int

// The kinds of layers.
const (
	Sealed Kind = iota // no file: the pages are in the memory of this process
	Stored             // a layer file
	Raw                // a file whose n-th page is page n
	Pages              // a file of pages, and a list of their numbers
)

// Kind returns what the file behind the layer is.
func (l *Layer) Kind() Kind {
	switch {
	case l.file == nil:
		return Sealed
	case l.file.digest != (Digest{}):
		return Stored
	case l.file.list:
		return Pages
	default:
		return Raw
	}
}

// File returns the file behind the layer, nil if there is none. It is the layer's.
func (l *Layer) File() *os.File {
	if l.file == nil {
		return nil
	}
	return l.file.file
}

// Numbers returns which pages the layer has contents for, in the order of its file
// if it is of kind Pages, and which are holes.
func (l *Layer) Numbers() (stored, holes []Number) {
	for n, p := range l.All {
		if p == nil {
			holes = append(holes, n)
		} else {
			stored = append(stored, n)
		}
	}
	return stored, holes
}

// WritePages writes the pages of the layer that are not holes to f, which is empty,
// one after the other, in the order of Numbers.
func (l *Layer) WritePages(f File) error {
	size := int64(l.Stored()) * Size
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); size > 0 && err != nil {
		return fmt.Errorf("allocating %d bytes for pages: %w", size, err)
	}
	at, buf := int64(0), make([]byte, 0, min(size, blockSize))
	flush := func() error {
		_, err := f.WriteAt(buf, at)
		at, buf = at+int64(len(buf)), buf[:0]
		if err != nil {
			return fmt.Errorf("writing pages: %w", err)
		}
		return nil
	}
	for _, p := range l.All {
		if p == nil {
			continue
		}
		if buf = append(buf, p[:]...); len(buf) == cap(buf) {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// OpenPages maps a file that WritePages has written. It takes over f, also when it
// fails. Whoever has written it might do so again: what is in the pages is not more
// to be trusted than its writer is. Numbers that are out of order, and a file of
// another size than they say, are an error that wraps ErrCorrupt.
func OpenPages(f *os.File, limit Number, stored, holes []Number) (*Layer, error) {
	m, err := adopt(f)
	if err != nil {
		return nil, err
	}
	layer, err := m.pages(limit, stored, holes)
	if err != nil {
		m.close()
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	return layer, nil
}

// pages maps a file of pages.
func (m *mapping) pages(limit Number, stored, holes []Number) (*Layer, error) {
	if limit > MaxLimit || m.size != int64(len(stored))*Size {
		return nil, fmt.Errorf("%w: %d bytes for %d pages of at most %d", ErrCorrupt, m.size, len(stored), limit)
	}
	m.list = true
	if m.size > 0 {
		if err := m.mapAll(); err != nil {
			return nil, err
		}
	}
	numbers := make([]Number, 0, len(stored)+len(holes))
	pages := make([]*Page, 0, cap(numbers))
	for i, j := 0, 0; i < len(stored) || j < len(holes); {
		var n Number
		var p *Page
		if j == len(holes) || i < len(stored) && stored[i] < holes[j] {
			n, p = stored[i], (*Page)(m.mem[i*Size:])
			i++
		} else {
			n = holes[j]
			j++
		}
		if n >= limit || len(numbers) > 0 && n <= numbers[len(numbers)-1] {
			return nil, fmt.Errorf("%w: page number %d is out of order, double or beyond the limit", ErrCorrupt, n)
		}
		numbers, pages = append(numbers, n), append(pages, p)
	}
	return newFileLayer(limit, m, newIndex(numbers, pages)), nil
}

// OpenLayerFile is OpenLayer for a file that is open. It takes over f, also when it
// fails. One of an address space with more than most pages is refused before anything is
// allocated for it, with an error that wraps ErrCorrupt.
func OpenLayerFile(f *os.File, most Number) (*Layer, error) { return open(f, most, (*mapping).layer) }

// OpenRawFile is OpenRaw as OpenLayerFile is OpenLayer.
func OpenRawFile(f *os.File, most Number) (*Layer, error) { return open(f, most, (*mapping).raw) }

func open(f *os.File, most Number, read func(*mapping, Number) (*Layer, error)) (*Layer, error) {
	m, err := adopt(f)
	if err != nil {
		return nil, err
	}
	layer, err := read(m, min(most, MaxLimit))
	if err != nil {
		m.close()
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	return layer, nil
}
