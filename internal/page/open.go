package page

import (
	"context"
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
	list   bool   // it holds pages whose numbers are told elsewhere
}

// OpenLayer maps a layer file after verifying its size, header and index; see
// Layer.Verify for the pages. Errors other than from the system wrap
// ErrCorrupt, and all name the file. The file must not be changed afterwards
// (see Layer.Intact); it may be unlinked.
func OpenLayer(path string) (*Layer, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return OpenLayerFile(f, MaxLimit)
}

// OpenRaw maps an ordinary file, such as a disk image, as a layer whose page n
// is the n-th page of the file. Its limit is the file's size in pages. Nothing
// is read or verified; otherwise OpenRaw is like OpenLayer.
func OpenRaw(path string) (*Layer, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return OpenRawFile(f, MaxLimit)
}

// openFile opens a file. Opening a pipe would wait for its writer without
// O_NONBLOCK.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// adopt takes over a regular file that is open; it is not mapped yet. What is not
// one it closes.
func adopt(f *os.File) (*mapping, error) {
	m := &mapping{file: f, path: f.Name()}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("looking at %s: %w", m.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, fmt.Errorf("%s: %w: not a regular file", m.path, ErrCorrupt)
	}
	m.size, m.mtime = st.Size, st.Mtim
	return m, nil
}

func (m *mapping) close() {
	if m.mem != nil {
		unix.Munmap(m.mem)
	}
	m.detach()
}

func (m *mapping) detach() {
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}

func (m *mapping) intact() error {
	if m.file == nil {
		return nil
	}
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
// larger than ours.
func (m *mapping) mapAll() (err error) {
	m.mem, err = unix.Mmap(int(m.file.Fd()), 0, int(m.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %d bytes: %w", m.size, err)
	}
	return nil
}

func (m *mapping) raw(most Number) (*Layer, error) {
	if m.size == 0 || m.size%Size != 0 || m.size > int64(most)*Size {
		return nil, fmt.Errorf("%w: %d bytes is not 1 to %d whole pages", ErrCorrupt, m.size, most)
	}
	if err := m.mapAll(); err != nil {
		return nil, err
	}
	numbers := make([]Number, m.size/Size)
	pages := make([]*Page, len(numbers))
	for i := range numbers {
		numbers[i], pages[i] = Number(i), (*Page)(m.mem[i*Size:])
	}
	return newFileLayer(Number(len(numbers)), m, newIndex(numbers, pages)), nil
}

// layer verifies the metadata of a layer file and maps it. Metadata are read
// rather than mapped: a file that is truncated meanwhile, or a bad disk, is then
// an error and not a bus error.
func (m *mapping) layer(most Number) (*Layer, error) {
	l, meta, err := m.readMeta(most)
	if err != nil {
		return nil, err
	}
	m.digest = Digest(meta[digestAt:headerSize])
	numbers, at, err := parseIndex(l, meta[headerSize:l.meta()])
	if err != nil {
		return nil, err
	}
	if err := m.mapAll(); err != nil {
		return nil, err
	}
	// Only a hint: a layer that the host does not have in memory is read in one
	// go, not page by page as a guest comes by. Entering it into the page tables
	// would take a hundred times as long, and saves only some of the first faults.
	_ = unix.Madvise(m.mem, unix.MADV_WILLNEED)
	pages := make([]*Page, len(numbers))
	for i, at := range at {
		if at >= 0 {
			pages[i] = (*Page)(m.mem[l.data()+int64(at)*Size:])
		}
	}
	layer := newFileLayer(Number(l.limit), m, newIndex(numbers, pages))
	layer.saved.Store(&m.digest)
	return layer, nil
}

// Verify reads the whole file of a layer from OpenLayer and compares it with its
// hashes. done, which may be nil, is called with the number of bytes after each
// block, from several goroutines. The error wraps ErrCorrupt, or is that of ctx;
// it names the file.
func (l *Layer) Verify(ctx context.Context, done func(n int64)) error {
	if l.file == nil || l.Digest() == (Digest{}) {
		return nil // never left memory, or has no hashes
	}
	if err := l.file.verify(ctx, done); err != nil {
		return fmt.Errorf("%s: %w", l.file.path, err)
	}
	return nil
}

func (m *mapping) verify(ctx context.Context, done func(int64)) error {
	l, meta, err := m.readMeta(MaxLimit)
	if err != nil {
		return err
	}
	if Digest(meta[digestAt:headerSize]) != m.digest {
		return fmt.Errorf("%w: has become another layer", ErrCorrupt)
	}
	if done == nil {
		done = func(int64) {}
	}
	done(l.data())
	hashes := meta[l.meta()-sha256.Size*l.blocks() : l.meta()]
	return eachBlock(l.stored*Size, func(i int, block []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.readAt(block, l.data()+int64(i)*blockSize); err != nil {
			return err
		}
		if sha256.Sum256(block) != [sha256.Size]byte(hashes[i*sha256.Size:]) {
			return fmt.Errorf("%w: pages in block %d do not match their hash", ErrCorrupt, i)
		}
		done(int64(len(block)))
		return nil
	})
}

// Maps reports whether a layer is from the file that has that name now.
func (l *Layer) Maps(path string) bool {
	if l.file == nil {
		return false
	}
	named, err := os.Stat(path)
	if err != nil {
		return false
	}
	mapped, err := l.file.file.Stat()
	return err == nil && os.SameFile(named, mapped)
}

// LinkTo gives the file of a layer from OpenLayer or OpenRaw another name, on
// the same file system. It fails if the file has no name any more.
func (l *Layer) LinkTo(path string) error {
	if l.file == nil {
		return fmt.Errorf("linking %s: %w: the layer has no file", path, os.ErrInvalid)
	}
	// Through the descriptor, because the name may be another file's by now.
	from := fmt.Sprintf("/proc/self/fd/%d", l.file.file.Fd())
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return fmt.Errorf("linking %s to %s: %w", path, l.file.path, err)
	}
	return nil
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

// readMeta reads everything before the pages and checks it, but for the order of
// the index. most is how many pages the address space may have.
func (m *mapping) readMeta(most Number) (l layout, meta []byte, err error) {
	if l, err = m.readHeader(most); err != nil {
		return l, nil, err
	}
	meta = make([]byte, l.data())
	if err := m.readAt(meta, 0); err != nil {
		return l, nil, err
	}
	if metaDigest(meta[:l.meta()]) != Digest(meta[digestAt:headerSize]) {
		return l, nil, fmt.Errorf("%w: index does not match its hash", ErrCorrupt)
	}
	for _, b := range meta[l.meta():] {
		if b != 0 {
			return l, nil, fmt.Errorf("%w: padding is not zero", ErrCorrupt)
		}
	}
	return l, meta, nil
}

// readHeader reads and checks the header. Sizes come from the file, so they
// are compared with its length before anyone allocates by them.
func (m *mapping) readHeader(most Number) (l layout, err error) {
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
	if u32(12) != Size || u32(28) != 0 || l.limit > int64(most) || l.stored+l.holes > l.limit {
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
