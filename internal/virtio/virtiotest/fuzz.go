package virtiotest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/forkd-dev/forkd/internal/virtio/mmio"
)

// pound kicks all queues of a device in any state.
func (d *Driver) pound() {
	d.RunPosted()
	for i := range uint32(4) {
		d.Set(RegQueueNotify, i)
	}
	d.RunPosted()
	d.consistent()
}

// consistent checks what holds in every state.
func (d *Driver) consistent() {
	d.TB.Helper()
	if d.Line.High() != (d.Get(RegInterruptStatus) != 0) {
		d.TB.Fatalf("line is %t with interrupt status %#x", d.Line.High(), d.Get(RegInterruptStatus))
	}
	if status := d.Get(RegStatus); status&StatusDriverOK != 0 && status&StatusFeaturesOK == 0 {
		d.TB.Fatalf("impossible status %#x", status)
	}
}

// Fuzz is a device's fuzz target: programs of register accesses, ring contents
// and kicks, most of them nearly valid.
func Fuzz(f *testing.F, s Subject) {
	f.Add([]byte{opStart, opChain, 1, 0, 0, 16, 0, opKick})
	f.Add([]byte{opStart, opRequest, opKick, opSave, opRequest, opKick})
	f.Add([]byte{opStart, opRequest, opRing, 0, 1, 4, 0xff, 0xff, 0xff, 0xff, opKick})
	f.Add([]byte{opStart, opIndirect, opKick, opWrite, 0x70, 0, 0, 0, 0, opKick, opStart, opRequest, opKick})
	f.Fuzz(func(t *testing.T, program []byte) {
		d := s.driver(t)
		in := input(program)
		for step := 0; len(in) > 0 && step < 64; step++ {
			s.step(d, &in)
			d.consistent()
		}
		saved := d.State()
		d.Line = new(Line)
		if d.Restore(saved); !bytes.Equal(saved, d.State()) {
			t.Fatal("state differs after a load")
		}
		d.pound()
		s.works(d) // whatever went before, a driver can start over
	})
}

// The operations of a fuzz program.
const (
	opStart = iota
	opKick
	opRequest  // the device's sample request
	opIndirect // the same through an indirect table
	opChain    // buffers of the program's choice
	opRing     // bytes somewhere in a queue's rings
	opWrite    // a register
	opRead
	opSave
	opCount
)

// input hands out the bytes of a program, zeros after its end.
type input []byte

func (in *input) byte() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

func (in *input) u16() uint16 { return uint16(in.byte()) | uint16(in.byte())<<8 }

func (in *input) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = in.byte()
	}
	return b
}

func (s Subject) step(d *Driver, in *input) {
	op := in.byte() % opCount
	if len(d.Queues) == 0 {
		d.Start(Features, 16)
	}
	q := d.Queues[s.Queue]
	switch op {
	case opStart:
		features := uint64(Features)
		if in.byte()&1 != 0 {
			features = FeatureVersion1
		}
		d.Start(features, 16)
	case opKick:
		d.Set(RegQueueNotify, uint32(in.byte()%8))
		d.RunPosted()
	case opRequest:
		q.Add(s.Request...)
	case opIndirect:
		q.AddIndirect(s.Request...)
	case opChain:
		d.Queues[int(in.byte())%len(d.Queues)].Add(in.buffers()...)
	case opRing:
		at := RAMBase + ringSpace*uint64(in.byte()%4) + uint64(in.u16())%0x2800
		d.Fill(at, in.bytes(int(in.byte()%24)))
	case opWrite:
		reg := uint64(in.u16()) % mmio.Size &^ 3
		d.Dev.Write(reg, 4, uint64(binary.LittleEndian.Uint32(in.bytes(4))))
	case opRead:
		width := 1 << (in.byte() % 4)
		d.Dev.Read(uint64(in.u16())%(mmio.Size-8), width)
	case opSave:
		d.Restore(d.State())
	}
}

// buffers makes up to four buffers: their kind, size and contents are the
// program's.
func (in *input) buffers() (out []Buffer) {
	n := int(in.byte()%4) + 1
	for range n {
		kind, size := in.byte(), int(in.u16()%9000)+1
		if kind&1 != 0 {
			out = append(out, In(size))
			continue
		}
		out = append(out, Out(append(in.bytes(min(size, 48)), make([]byte, max(size-48, 0))...)))
	}
	return out
}
