package board

import "encoding/binary"

// fdt writes a flattened device tree (dtspec 5). Nodes are opened and closed
// in order; property values are big-endian cells, strings or raw bytes.
type fdt struct {
	structs []byte
	strings []byte
	offsets map[string]uint32 // of property names in strings
}

// Structure block tokens (dtspec 5.4.1), and the header's constants (5.2).
const (
	fdtBeginNode = 1
	fdtEndNode   = 2
	fdtProp      = 3
	fdtEnd       = 9

	fdtMagic             = 0xd00dfeed
	fdtVersion           = 17
	fdtCompatibleVersion = 16
	fdtHeaderSize        = 40
	fdtReserveMapSize    = 16 // one terminating entry
)

func (t *fdt) cell(v uint32) { t.structs = binary.BigEndian.AppendUint32(t.structs, v) }

func (t *fdt) pad() {
	for len(t.structs)%4 != 0 {
		t.structs = append(t.structs, 0)
	}
}

// node writes a node whose contents are written by body.
func (t *fdt) node(name string, body func()) {
	t.cell(fdtBeginNode)
	t.structs = append(t.structs, name...)
	t.structs = append(t.structs, 0)
	t.pad()
	body()
	t.cell(fdtEndNode)
}

func (t *fdt) bytes(name string, value []byte) {
	off, ok := t.offsets[name]
	if !ok {
		off = uint32(len(t.strings))
		t.strings = append(append(t.strings, name...), 0)
		t.offsets[name] = off
	}
	t.cell(fdtProp)
	t.cell(uint32(len(value)))
	t.cell(off)
	t.structs = append(t.structs, value...)
	t.pad()
}

func (t *fdt) cells(name string, values ...uint32) {
	var b []byte
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	t.bytes(name, b)
}

func (t *fdt) text(name string, values ...string) {
	var b []byte
	for _, v := range values {
		b = append(append(b, v...), 0)
	}
	t.bytes(name, b)
}

// flag writes a property without a value.
func (t *fdt) flag(name string) { t.bytes(name, nil) }

// reg writes address and size, two cells each.
func (t *fdt) reg(base, size uint64) {
	t.cells("reg", uint32(base>>32), uint32(base), uint32(size>>32), uint32(size))
}

// blob returns the finished tree.
func (t *fdt) blob() []byte {
	t.cell(fdtEnd)
	var b []byte
	structsAt := uint32(fdtHeaderSize + fdtReserveMapSize)
	stringsAt := structsAt + uint32(len(t.structs))
	total := stringsAt + uint32(len(t.strings))
	for _, v := range []uint32{
		fdtMagic, total, structsAt, stringsAt, fdtHeaderSize, fdtVersion, fdtCompatibleVersion,
		0, // boot CPU
		uint32(len(t.strings)), uint32(len(t.structs)),
	} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = append(b, make([]byte, fdtReserveMapSize)...)
	return append(append(b, t.structs...), t.strings...)
}
