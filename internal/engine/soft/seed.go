package soft

import (
	"encoding/binary"
	"io"
)

// seeds is entropy that a vCPU's guest has not asked for yet: as much as Linux takes at a
// time when it derives a new key for its generator.
type seeds struct {
	buf  [32]byte
	left int // bytes of buf, from its beginning
}

// seed is the hart's source of entropy (hart.Hart). It is called on the vCPU's goroutine.
func (v *vcpu) seed() (entropy uint16, ok bool) {
	s := &v.seeds
	if s.left == 0 {
		if _, err := io.ReadFull(v.vm.seeds, s.buf[:]); err != nil {
			return 0, false
		}
		s.left = len(s.buf)
	}
	s.left -= 2
	piece := s.buf[s.left:][:2]
	entropy = binary.LittleEndian.Uint16(piece)
	clear(piece)
	return entropy, true
}
