package wire

import "encoding/binary"

// MaxOwner is how many bytes the owner of limits may have.
const MaxOwner = 80

// Limits bound what user code takes of a guest. A zero number is no limit, and
// the zero Limits are none at all.
type Limits struct {
	// Owner is whom the limits are for, in printable ASCII. A machine that comes
	// back under the owner and the limits that it had goes on with what it had left;
	// one that is restored for another owner begins anew.
	Owner     string
	Processes uint32 // processes and threads, but for the agent's and the kernel's
	DiskBytes uint64 // that the file system of the scratch disk may still take
}

// limitsFixed is what the encoding of Limits has besides the owner.
const limitsFixed = 4 + 8 + 1

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l.Processes > 0 || l.DiskBytes > 0 }

// validate refuses limits that are neither none nor whole.
func (l *Limits) validate() error {
	if *l == (Limits{}) {
		return nil
	}
	if !l.Any() {
		return Errorf(CodeBadRequest, "limits", "limits without a number")
	}
	if len(l.Owner) == 0 || len(l.Owner) > MaxOwner {
		return Errorf(CodeBadRequest, "owner", "an owner of limits has 1 to %d bytes, not %d", MaxOwner, len(l.Owner))
	}
	for i := range len(l.Owner) {
		if c := l.Owner[i]; c <= ' ' || c > '~' {
			return Errorf(CodeBadRequest, "owner", "owner of limits %q has more than printable ASCII", l.Owner)
		}
	}
	return nil
}

func (l *Limits) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, l.Processes)
	b = binary.LittleEndian.AppendUint64(b, l.DiskBytes)
	return append(append(b, byte(len(l.Owner))), l.Owner...)
}

// parse reads all of b. The caller validates.
func (l *Limits) parse(b []byte) error {
	if len(b) < limitsFixed || len(b) != limitsFixed+int(b[limitsFixed-1]) {
		return Errorf(CodeBadRequest, "limits", "limits of %d bytes have the wrong length", len(b))
	}
	l.Processes = binary.LittleEndian.Uint32(b)
	l.DiskBytes = binary.LittleEndian.Uint64(b[4:])
	l.Owner = string(b[limitsFixed:])
	return nil
}
