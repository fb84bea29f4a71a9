package warm

import (
	"bytes"
	"testing"
)

// Any change of the entropy changes what is expanded from it, and the pure part is passed on as it is.
func TestExpand(t *testing.T) {
	var entropy [entropySize]byte
	for i := range entropy {
		entropy[i] = byte(i)
	}
	var words, other [seedSize / 8]uint64
	expand(&entropy, &words)
	base := bytesOf(words[:])
	if !bytes.Equal(base[:pureSize], entropy[:pureSize]) {
		t.Error("the first bytes are not the entropy itself")
	}
	var ones int
	for _, b := range base[pureSize:] {
		for ; b != 0; b &= b - 1 {
			ones++
		}
	}
	if bits := 8 * (seedSize - pureSize); ones < bits*48/100 || ones > bits*52/100 {
		t.Errorf("%d of %d bits are set", ones, bits)
	}
	for i := range entropy {
		changed := entropy
		changed[i] ^= 2
		if expand(&changed, &other); other == words {
			t.Errorf("byte %d of the entropy changes nothing", i)
		}
	}
}

func TestPageCommands(t *testing.T) {
	p, err := newPage()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	seed := make([]byte, seedSize)
	seed[0] = 9
	if err := p.release(seed); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, offSeed+1)
	if err := p.io.ReadAt(got, 0); err != nil || got[offGo] != 1 || got[offGo+1] != 1 || got[offSeed] != 9 {
		t.Errorf("after a release with a reseed: %v, %v", got, err)
	}
	// A hold forgets what an earlier one left.
	if err := p.command(commandHold); err != nil {
		t.Fatal(err)
	}
	if err := p.io.ReadAt(got, 0); err != nil || !bytes.Equal(got[:4], []byte{commandHold, 0, 0, 0}) {
		t.Errorf("after a hold: %v, %v", got[:4], err)
	}
	if err := p.put(offCurrent, 77); err != nil || p.current() != 77 {
		t.Errorf("current is %d, %v", p.current(), err)
	}
	if state, err := p.state(); err != nil || state != 0 {
		t.Errorf("state is %d, %v", state, err)
	}
}
