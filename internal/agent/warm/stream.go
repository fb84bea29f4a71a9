package warm

import (
	"encoding/binary"
	"math/bits"
)

// StreamSize is how many bytes of entropy a Stream begins with.
const StreamSize = 24

// Stream yields states for generators that are no secret, and so large that the kernel's generator would take longer to fill
// them than everything else about a first contact: products of two numbers that are made of a counter whose start, step
// and companion are random. Those of different streams have nothing in common.
type Stream struct {
	counter, step, companion uint64
}

// NewStream begins a stream.
func NewStream(entropy *[StreamSize]byte) Stream {
	return Stream{
		binary.NativeEndian.Uint64(entropy[:]),
		binary.NativeEndian.Uint64(entropy[8:]) | 1,
		binary.NativeEndian.Uint64(entropy[16:]),
	}
}

// fill takes words from the stream.
func (s *Stream) fill(words []uint64) {
	counter, step, companion := s.counter, s.step, s.companion
	for i := range words {
		counter += step
		high, low := bits.Mul64(counter, counter^companion)
		words[i] = high ^ low
	}
	s.counter = counter
}
