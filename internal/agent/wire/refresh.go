package wire

import (
	"encoding/binary"
	"fmt"
)

// Sizes of the fields of a Refresh, in bytes.
const (
	EntropySize    = 64
	MaxHostname    = 64 // the kernel's limit
	machineIDSize  = 32
	bootIDSize     = 36
	refreshVersion = 1
	refreshLimited = 2 // version 1, and limits behind it
	refreshFixed   = 1 + 8 + 8 + EntropySize + machineIDSize + bootIDSize + 1
)

// Refresh is the first request in a restored child: its new identity. It is binary, not JSON, because every child pays
// for reading it. Layout, little-endian: u8 layout version, u64 generation, i64 wall clock, 64 bytes of entropy, 32
// bytes machine-id, 36 bytes boot-id, u8 length of the host name, host name. That is version 1; version 2, which is used
// only if there are limits, goes on with u32 processes, u64 bytes of disk, u8 length of the owner, owner.
type Refresh struct {
	Generation uint64 // grows with each restore in a machine's line; never 0
	WallNS     int64  // host's CLOCK_REALTIME, in nanoseconds, when the machine's time counter was 0
	Entropy    [EntropySize]byte
	MachineID  string // 32 lower-case hexadecimal digits
	BootID     string // UUID in its 36 character form
	Hostname   string // 1 to 64 letters, digits, '-' and '.'
	Limits     Limits
}

// Validate checks every field. The error is an *Error.
func (r *Refresh) Validate() error {
	switch {
	case r.Generation == 0:
		return Errorf(CodeBadRequest, "generation", "generation must not be 0")
	case r.WallNS <= 0:
		return Errorf(CodeBadRequest, "wall_ns", "wall clock %d ns lies before 1970", r.WallNS)
	case !isHex(r.MachineID, machineIDSize, false):
		return Errorf(CodeBadRequest, "machine_id", "machine-id must be 32 lower-case hexadecimal digits")
	case !isHex(r.BootID, bootIDSize, true):
		return Errorf(CodeBadRequest, "boot_id", "boot-id must be a lower-case UUID")
	case !isHostname(r.Hostname):
		return Errorf(CodeBadRequest, "hostname", "host name %q must be 1 to %d letters, digits, '-' or '.'", r.Hostname, MaxHostname)
	}
	return r.Limits.validate()
}

// AppendBinary appends the encoding of a valid r to b.
func (r *Refresh) AppendBinary(b []byte) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	version := byte(refreshVersion)
	if r.Limits.Any() {
		version = refreshLimited
	}
	b = append(b, version)
	b = binary.LittleEndian.AppendUint64(b, r.Generation)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.WallNS))
	b = append(b, r.Entropy[:]...)
	b = append(b, r.MachineID...)
	b = append(b, r.BootID...)
	b = append(b, byte(len(r.Hostname)))
	b = append(b, r.Hostname...)
	if version == refreshLimited {
		b = r.Limits.append(b)
	}
	return b, nil
}

// UnmarshalBinary reads and validates an encoded Refresh. The error is an *Error.
func (r *Refresh) UnmarshalBinary(b []byte) error {
	if len(b) < 1 || b[0] != refreshVersion && b[0] != refreshLimited {
		return Errorf(CodeUnsupportedVersion, "refresh", "refresh layout is not version %d or %d", refreshVersion, refreshLimited)
	}
	limited := b[0] == refreshLimited
	end := refreshFixed
	if len(b) >= end {
		end += int(b[end-1])
	}
	if len(b) < end || len(b) > end && !limited {
		return Errorf(CodeBadRequest, "refresh", "refresh of %d bytes has the wrong length", len(b))
	}
	r.Limits = Limits{}
	if limited {
		if err := r.Limits.parse(b[end:]); err != nil {
			return err
		}
		if !r.Limits.Any() {
			return Errorf(CodeBadRequest, "limits", "refresh layout %d is for limits, and there are none", refreshLimited)
		}
	}
	b = b[1:end]
	r.Generation = binary.LittleEndian.Uint64(b)
	r.WallNS = int64(binary.LittleEndian.Uint64(b[8:]))
	b = b[16:]
	b = b[copy(r.Entropy[:], b):]
	r.MachineID, b = string(b[:machineIDSize]), b[machineIDSize:]
	r.BootID, b = string(b[:bootIDSize]), b[bootIDSize:]
	r.Hostname = string(b[1:])
	return r.Validate()
}

// String leaves the entropy out, so that it does not end up in a log.
func (r *Refresh) String() string {
	return fmt.Sprintf("refresh generation %d as %s", r.Generation, r.Hostname)
}

// isHex reports whether s is size hexadecimal digits, with the dashes of a UUID if dashes is set.
func isHex(s string, size int, dashes bool) bool {
	if len(s) != size {
		return false
	}
	others := 0
	for i := range len(s) {
		if c := s[i]; c-'0' > 9 && c-'a' > 'f'-'a' {
			others++
		}
	}
	if !dashes {
		return others == 0
	}
	return others == 4 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-'
}

func isHostname(s string) bool {
	if len(s) == 0 || len(s) > MaxHostname || s[0] == '-' || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '-' && c != '.' {
			return false
		}
	}
	return true
}
