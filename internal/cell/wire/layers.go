package wire

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/forkd-dev/forkd/internal/page"
)

// AppendNumbers appends which pages a layer has contents for, and then which are
// holes, to b, and tells how many the former are.
func AppendNumbers(b []byte, l *page.Layer) (stored int, _ []byte) {
	full, holes := l.Numbers()
	for _, list := range [][]page.Number{full, holes} {
		for _, n := range list {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
	}
	return len(full), b
}

// ParseNumbers is the inverse of AppendNumbers. Whether they make sense whoever uses
// them finds out.
func ParseNumbers(b []byte, stored int) (full, holes []page.Number, err error) {
	total := len(b) / 4
	if len(b)%4 != 0 || stored < 0 || stored > total {
		return nil, nil, fmt.Errorf("%w: %d bytes of page numbers, of which %d are of stored pages", ErrMalformed, len(b), stored)
	}
	all := make([]page.Number, total)
	for i := range all {
		all[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return all[:stored], all[stored:], nil
}

// OpenLayer opens a layer as it is described; blob has the page numbers. It takes over
// the file. What it allocates is in proportion to the limit that is described, at most.
func OpenLayer(f *os.File, d Layer, blob []byte) (*page.Layer, error) {
	var l *page.Layer
	var err error
	switch d.Kind {
	case page.Stored:
		l, err = page.OpenLayerFile(f, d.Limit)
	case page.Raw:
		l, err = page.OpenRawFile(f, d.Limit)
	case page.Pages:
		full, holes, parseErr := ParseNumbers(blob, d.Stored)
		if parseErr == nil && int64(len(full))+int64(len(holes)) > int64(d.Limit) {
			parseErr = fmt.Errorf("%w: the numbers of %d pages of %d", ErrMalformed, len(full)+len(holes), d.Limit)
		}
		if parseErr != nil {
			f.Close()
			return nil, parseErr
		}
		return page.OpenPages(f, d.Limit, full, holes)
	default:
		f.Close()
		return nil, fmt.Errorf("%w: a layer of kind %d", ErrMalformed, d.Kind)
	}
	if err == nil && l.Limit() != d.Limit {
		l.Release()
		err = fmt.Errorf("%w: a layer for %d pages that should be for %d", page.ErrCorrupt, l.Limit(), d.Limit)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}
