package page

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// mapping is a file of pages mapped read-only.
type mapping struct {
	file   *os.File
	path   string
	mem    []byte // the whole file
	size   int64
	mtime  unix.Timespec
	digest Digest // of a layer file
}

// OpenLayer maps a layer file after verifying all of it. Errors other than
// from the system wrap ErrCorrupt, and all name the file. The file must not be
// changed afterwards (see Layer.Intact); it may be unlinked.
func OpenLayer(path string) (*Layer, error) {
	m, err := openFile(path)
	if err != nil {
		return nil, err
	}
	layer, err := m.layer()
	if err != nil {
		m.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return layer, nil
}

// OpenRaw maps an ordinary file, such as a disk image, as a layer whose page n
// is the n-th page of the file. Its limit is the file's size in pages. Nothing
// is read or verified; otherwise OpenRaw is like OpenLayer.
func OpenRaw(path string) (*Layer, error) {
	m, err := openFile(path)
	if err != nil {
		return nil, err
	}
	layer, err := m.raw()
	if err != nil {
		m.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return layer, nil
}

// openFile opens a regular file; it is not mapped yet.
func openFile(path string) (*mapping, error) {
	// Opening a pipe would wait for its writer without O_NONBLOCK.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	m := &mapping{file: f, path: path}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, fmt.Errorf("%s: %w: not a regular file", path, ErrCorrupt)
	}
	m.size, m.mtime = st.Size, st.Mtim
	return m, nil
}

func (m *mapping) close() {
	if m.mem != nil {
		unix.Munmap(m.mem)
	}
	m.file.Close()
}

func (m *mapping) intact() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.file.Fd()), &st); err != nil {
		return fmt.Errorf("looking at %s: %w", m.path, err)
	}
	if st.Size != m.size || st.Mtim != m.mtime {
		return fmt.Errorf("%s: %w: changed while in use", m.path, ErrCorrupt)
	}
	return nil
}

// mapAll maps the file from its beginning, because the host's pages may be
// larger than ours. flags say whether to read it all now.
func (m *mapping) mapAll(flags int) (err error) {
	m.mem, err = unix.Mmap(int(m.file.Fd()), 0, int(m.size), unix.PROT_READ, unix.MAP_SHARED|flags)
	if err != nil {
		return fmt.Errorf("mapping %d bytes: %w", m.size, err)
	}
	return nil
}

func (m *mapping) raw() (*Layer, error) {
	if m.size == 0 || m.size%Size != 0 || m.size > MaxLimit*Size {
		return nil, fmt.Errorf("%w: %d bytes is not 1 to %d whole pages", ErrCorrupt, m.size, MaxLimit)
	}
	if err := m.mapAll(0); err != nil {
		return nil, err
	}
	numbers := make([]Number, m.size/Size)
	pages := make([]*Page, len(numbers))
	for i := range numbers {
		numbers[i], pages[i] = Number(i), (*Page)(m.mem[i*Size:])
	}
	layer := newLayer(Number(len(numbers)), numbers, pages)
	layer.file = m
	return layer, nil
}

// layer verifies and maps a layer file. Verifying reads rather than maps: a
// file that is truncated meanwhile, or a bad disk, is then an error and not a
// bus error.
func (m *mapping) layer() (*Layer, error) {
	l, err := m.readHeader()
	if err != nil {
		return nil, err
	}
	meta := make([]byte, l.data())
	if err := m.readAt(meta, 0); err != nil {
		return nil, err
	}
	if m.digest = Digest(meta[digestAt:headerSize]); metaDigest(meta[:l.meta()]) != m.digest {
		return nil, fmt.Errorf("%w: index does not match its hash", ErrCorrupt)
	}
	for _, b := range meta[l.meta():] {
		if b != 0 {
			return nil, fmt.Errorf("%w: padding is not zero", ErrCorrupt)
		}
	}
	index, hashes := meta[headerSize:l.meta()], meta[l.meta()-sha256.Size*l.blocks():l.meta()]
	numbers, at, err := parseIndex(l, index)
	if err != nil {
		return nil, err
	}
	if err := m.verifyBlocks(l, hashes); err != nil {
		return nil, err
	}
	if err := m.mapAll(unix.MAP_POPULATE); err != nil {
		return nil, err
	}
	pages := make([]*Page, len(numbers))
	for i, at := range at {
		if at >= 0 {
			pages[i] = (*Page)(m.mem[l.data()+int64(at)*Size:])
		}
	}
	layer := newLayer(Number(l.limit), numbers, pages)
	layer.file = m
	return layer, nil
}

// readAt fills b from the file.
func (m *mapping) readAt(b []byte, offset int64) error {
	switch _, err := m.file.ReadAt(b, offset); {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: ends before byte %d", ErrCorrupt, offset+int64(len(b)))
	case err != nil:
		return fmt.Errorf("reading layer: %w", err)
	}
	return nil
}

// readHeader reads and checks the header. Sizes come from the file, so they
// are compared with its length before anyone allocates by them.
func (m *mapping) readHeader() (l layout, err error) {
	h := make([]byte, headerSize)
	if err := m.readAt(h, 0); err != nil {
		return l, err
	}
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(h[at:])) }
	if string(h[:len(fileMagic)]) != fileMagic {
		return l, fmt.Errorf("%w: not a layer file", ErrCorrupt)
	}
	if v := u32(8); v != fileVersion {
		return l, fmt.Errorf("%w: format version %d, this forkd reads version %d", ErrCorrupt, v, fileVersion)
	}
	l = layout{limit: u32(16), stored: u32(20), holes: u32(24)}
	if u32(12) != Size || u32(28) != 0 || l.limit > MaxLimit || l.stored+l.holes > l.limit {
		return l, fmt.Errorf("%w: impossible sizes in the header", ErrCorrupt)
	}
	if m.size != l.size() {
		return l, fmt.Errorf("%w: %d bytes long, should be %d", ErrCorrupt, m.size, l.size())
	}
	return l, nil
}

// parseIndex merges stored pages and holes into one list. at tells which of
// the file's pages a number has, -1 for a hole.
func parseIndex(l layout, b []byte) (numbers []Number, at []int32, err error) {
	list := func(i int64) int64 { return int64(binary.LittleEndian.Uint32(b[4*i:])) }
	total := l.stored + l.holes
	numbers, at = make([]Number, total), make([]int32, total)
	last := int64(-1)
	for i, j := int64(0), l.stored; i+j < total+l.stored; {
		k := i + j - l.stored
		var n int64
		if j == total || i < l.stored && list(i) < list(j) {
			n, at[k] = list(i), int32(i)
			i++
		} else {
			n, at[k] = list(j), -1
			j++
		}
		// This covers disorder within a list and numbers that are in both: in
		// neither case does the merged list ascend.
		if n <= last || n >= l.limit {
			return nil, nil, fmt.Errorf("%w: page number %d is out of order, double or beyond the limit", ErrCorrupt, n)
		}
		numbers[k], last = Number(n), n
	}
	return numbers, at, nil
}

func (m *mapping) verifyBlocks(l layout, hashes []byte) error {
	return eachBlock(l.stored*Size, func(i int, block []byte) error {
		if err := m.readAt(block, l.data()+int64(i)*blockSize); err != nil {
			return err
		}
		if sha256.Sum256(block) != [sha256.Size]byte(hashes[i*sha256.Size:]) {
			return fmt.Errorf("%w: pages in block %d do not match their hash", ErrCorrupt, i)
		}
		return nil
	})
}
