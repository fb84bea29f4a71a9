package warm

import (
	"math/bits"
	"testing"
)

// Any change of the entropy changes what comes of it, by half its bits, and no part of a stream looks like the one before.
func TestStream(t *testing.T) {
	const words = 624
	var entropy [StreamSize]byte
	for i := range entropy {
		entropy[i] = byte(31 * i)
	}
	var stream, other, next [words]uint64
	s := NewStream(&entropy)
	s.fill(stream[:])
	s.fill(next[:])
	half := func(what string, a, b *[words]uint64) {
		t.Helper()
		different, same := 0, 0
		for i := range a {
			different += bits.OnesCount64(a[i] ^ b[i])
			if a[i] == b[i] {
				same++
			}
		}
		if same > words/100 { // a step that differs by 2⁵⁷ leads to the same place every 128 words
			t.Errorf("%s: %d words are the same", what, same)
		}
		if all := 64 * words; different < all*48/100 || different > all*52/100 {
			t.Errorf("%s: %d of %d bits differ", what, different, all)
		}
	}
	half("ones", &stream, new([words]uint64))
	half("the next", &stream, &next)
	for i := range entropy {
		changed := entropy
		changed[i] ^= 2
		c := NewStream(&changed)
		c.fill(other[:])
		half("a change", &stream, &other)
	}
	s = NewStream(&entropy)
	s.fill(other[:100])
	s.fill(other[100:])
	if other != stream {
		t.Error("a stream depends on how much of it is taken at a time")
	}
}
