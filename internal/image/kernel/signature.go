package kernel

import (
	"bytes"
	"encoding/binary"
)

// signatureMagic ends a signed module. Before it are 12 bytes, the last four of
// which are the signature's length, and before those the signature.
const (
	signatureMagic  = "~Module signature appended~\n"
	signatureHeader = 12
)

// dropSignature returns a module without the signature appended to it.
//
// Debian's kernel accepts unsigned modules, and checking the signatures of the
// few that a guest loads takes an emulated one 2.3 billion instructions, more
// than twice as many as the rest of its boot. Where the module comes from is
// certain without: the package's hash is in the archive's signed index, the
// initramfs's in the image's manifest.
func dropSignature(module []byte) []byte {
	body, signed := bytes.CutSuffix(module, []byte(signatureMagic))
	if !signed || len(body) < signatureHeader {
		return module
	}
	length := uint64(binary.BigEndian.Uint32(body[len(body)-4:]))
	body = body[:len(body)-signatureHeader]
	if length > uint64(len(body)) {
		return module
	}
	return body[:uint64(len(body))-length]
}
