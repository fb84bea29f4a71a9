package vsock

import "encoding/binary"

// HeaderSize is the size of a packet's header in bytes.
const HeaderSize = 44

// Operations (virtio 5.10.6).
const (
	OpRequest       = 1
	OpResponse      = 2
	OpReset         = 3
	OpShutdown      = 4
	OpData          = 5 // VIRTIO_VSOCK_OP_RW
	OpCreditUpdate  = 6
	OpCreditRequest = 7
)

// TypeStream is the only socket type that is served.
const TypeStream = 1

// Flags of OpShutdown: what the sender will not do any more.
const (
	ShutdownReceive = 1
	ShutdownSend    = 2
)

// HostCID is the context identifier of the host.
const HostCID = 2

// Header precedes each packet's payload (struct virtio_vsock_hdr).
type Header struct {
	SrcCID, DstCID   uint64
	SrcPort, DstPort uint32
	Size             uint32 // of the payload, in bytes
	Type, Op         uint16
	Flags            uint32
	BufAlloc         uint32 // the sender's receive buffer, in bytes
	FwdCnt           uint32 // bytes that its reader has consumed; wraps
}

// Parse reads a header. Any 44 bytes are one; what they mean is for the
// receiver to judge.
func (h *Header) Parse(b *[HeaderSize]byte) {
	le := binary.LittleEndian
	*h = Header{
		SrcCID: le.Uint64(b[0:]), DstCID: le.Uint64(b[8:]),
		SrcPort: le.Uint32(b[16:]), DstPort: le.Uint32(b[20:]),
		Size: le.Uint32(b[24:]),
		Type: le.Uint16(b[28:]), Op: le.Uint16(b[30:]),
		Flags:    le.Uint32(b[32:]),
		BufAlloc: le.Uint32(b[36:]), FwdCnt: le.Uint32(b[40:]),
	}
}

// Put writes the header.
func (h *Header) Put(b *[HeaderSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], h.SrcCID)
	le.PutUint64(b[8:], h.DstCID)
	le.PutUint32(b[16:], h.SrcPort)
	le.PutUint32(b[20:], h.DstPort)
	le.PutUint32(b[24:], h.Size)
	le.PutUint16(b[28:], h.Type)
	le.PutUint16(b[30:], h.Op)
	le.PutUint32(b[32:], h.Flags)
	le.PutUint32(b[36:], h.BufAlloc)
	le.PutUint32(b[40:], h.FwdCnt)
}
