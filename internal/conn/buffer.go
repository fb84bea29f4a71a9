package conn

import "sync"

// Buffer is a queue of bytes in chunks that are taken from a pool when they
// are needed and given back as soon as they are read, so that an idle
// connection holds none. The zero value is empty.
type Buffer struct {
	first, last *chunk
	size        int
}

type chunk struct {
	next       *chunk
	read, fill int
	data       [4096 - 32]byte
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// Len returns how many bytes are in the buffer.
func (b *Buffer) Len() int { return b.size }

// Write appends p.
func (b *Buffer) Write(p []byte) {
	b.size += len(p)
	for len(p) > 0 {
		if b.last == nil || b.last.fill == len(b.last.data) {
			b.grow()
		}
		n := copy(b.last.data[b.last.fill:], p)
		b.last.fill += n
		p = p[n:]
	}
}

func (b *Buffer) grow() {
	c := chunks.Get().(*chunk)
	c.next, c.read, c.fill = nil, 0, 0
	if b.last == nil {
		b.first = c
	} else {
		b.last.next = c
	}
	b.last = c
}

// Read moves bytes from the front to p and returns how many.
func (b *Buffer) Read(p []byte) (n int) {
	for n < len(p) && b.first != nil {
		c := b.first
		k := copy(p[n:], c.data[c.read:c.fill])
		n += k
		if c.read += k; c.read < c.fill {
			break
		}
		if b.first = c.next; b.first == nil {
			b.last = nil
		}
		chunks.Put(c)
	}
	b.size -= n
	return n
}

// Drop empties the buffer.
func (b *Buffer) Drop() {
	for c := b.first; c != nil; {
		next := c.next
		chunks.Put(c)
		c = next
	}
	*b = Buffer{}
}
