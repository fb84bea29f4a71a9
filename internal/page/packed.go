package page

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// packed holds pages as differences from the stack below: an idle child that
// touched hundreds of pages has often changed a few words in each (reference
// counts, list heads), or changed them and changed them back. It is immutable.
//
// A page is a run of records until the next page's offset: u16 first word, u16
// number of words, the words. Words have 8 bytes.
type packed struct {
	numbers []Number // ascending
	offsets []uint32 // parallel to numbers, into data
	data    []byte
}

const (
	wordSize   = 8
	pageWords  = Size / wordSize
	runHeader  = 4
	maxRunGap  = 1 // unchanged words worth storing to save a header
	maxRecord  = Size * 3 / 4
	indexBytes = 8 // of numbers and offsets, per page
)

// size returns the bytes that p takes.
func (p *packed) size() int { return len(p.data) + indexBytes*len(p.numbers) }

// find returns the index of page n.
func (p *packed) find(n Number) (int, bool) {
	if len(p.numbers) == 0 {
		return 0, false
	}
	return slices.BinarySearch(p.numbers, n)
}

// add appends a page unless it is as it was below. Numbers must ascend. It
// reports whether the page can go: one that has changed all over takes less time
// where it is, and hardly more memory.
func (p *packed) add(n Number, page, below *Page) bool {
	start := len(p.data)
	data := appendDifference(p.data, page, below)
	if len(data)-start > maxRecord {
		return false
	}
	if p.data = data; len(data) > start {
		p.numbers = append(p.numbers, n)
		p.offsets = append(p.offsets, uint32(start))
	}
	return true
}

// copyFrom appends the i-th page of q as it is.
func (p *packed) copyFrom(q *packed, i int) {
	p.numbers = append(p.numbers, q.numbers[i])
	p.offsets = append(p.offsets, uint32(len(p.data)))
	p.data = append(p.data, q.record(i)...)
}

func (p *packed) record(i int) []byte {
	end := len(p.data)
	if i+1 < len(p.offsets) {
		end = int(p.offsets[i+1])
	}
	return p.data[p.offsets[i]:end]
}

// apply turns page, which has the contents below, into the i-th page.
func (p *packed) apply(i int, page *Page) {
	for rec := p.record(i); len(rec) > 0; {
		first := int(binary.LittleEndian.Uint16(rec)) * wordSize
		size := int(binary.LittleEndian.Uint16(rec[2:])) * wordSize
		copy(page[first:first+size], rec[runHeader:])
		rec = rec[runHeader+size:]
	}
}

// appendDifference appends the runs of words in which page differs from below.
// It may stop when it has appended more than maxRecord bytes.
func appendDifference(out []byte, page, below *Page) []byte {
	var set [pageWords / 64]uint64
	if !differences(words(page), words(below), &set) {
		return out
	}
	most := len(out) + maxRecord
	for w := next(&set, 0); w < pageWords && len(out) <= most; {
		end := w + 1 // behind the last word of the run
		after := next(&set, end)
		for after < pageWords && after-end <= maxRunGap {
			end = after + 1
			after = next(&set, end)
		}
		out = binary.LittleEndian.AppendUint16(out, uint16(w))
		out = binary.LittleEndian.AppendUint16(out, uint16(end-w))
		out = append(out, page[w*wordSize:end*wordSize]...)
		w = after
	}
	return out
}

// differences sets the bits of the words in which the pages differ, and tells
// whether there are any.
func differences(page, below *[pageWords]uint64, set *[pageWords / 64]uint64) (any bool) {
	const line = 8 // words looked at together; most are equal
	for w := 0; w < pageWords; w += line {
		p, q := (*[line]uint64)(page[w:]), (*[line]uint64)(below[w:])
		if (p[0]^q[0])|(p[1]^q[1])|(p[2]^q[2])|(p[3]^q[3])|(p[4]^q[4])|(p[5]^q[5])|(p[6]^q[6])|(p[7]^q[7]) == 0 {
			continue
		}
		for i := range line {
			if p[i] != q[i] {
				set[w/64] |= 1 << (w%64 + i)
			}
		}
		any = true
	}
	return any
}

// next returns the first member of a set from w on, or pageWords.
func next(set *[pageWords / 64]uint64, w int) int {
	for ; w < pageWords; w = (w | 63) + 1 {
		if rest := set[w/64] >> (w % 64); rest != 0 {
			return w + bits.TrailingZeros64(rest)
		}
	}
	return pageWords
}
