package page

import (
	"encoding/binary"
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
	most := len(out) + maxRecord
	for w := nextDifference(page, below, 0); w < pageWords && len(out) <= most; {
		end := w + 1 // behind the last word of the run
		next := nextDifference(page, below, end)
		for next < pageWords && next-end <= maxRunGap {
			end = next + 1
			next = nextDifference(page, below, end)
		}
		out = binary.LittleEndian.AppendUint16(out, uint16(w))
		out = binary.LittleEndian.AppendUint16(out, uint16(end-w))
		out = append(out, page[w*wordSize:end*wordSize]...)
		w = next
	}
	return out
}

// nextDifference returns the first word from w on in which the pages differ,
// or pageWords.
func nextDifference(page, below *Page, w int) int {
	const block = 16 // words compared at a time
	for w < pageWords {
		at := w * wordSize
		if w%block == 0 && [block * wordSize]byte(page[at:]) == [block * wordSize]byte(below[at:]) {
			w += block
			continue
		}
		if binary.LittleEndian.Uint64(page[at:]) != binary.LittleEndian.Uint64(below[at:]) {
			return w
		}
		w++
	}
	return pageWords
}
