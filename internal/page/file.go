package page

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// A layer file is described in docs/format/layer.md:
//
//	header, index of stored pages, index of holes, hash of each block of page
//	data, padding to a page boundary, page data
//
// Page data lie at page-aligned offsets, so that a layer is used by mapping
// its file. The digest in the header covers everything before the padding, the
// padding is zero, and the block hashes cover the page data.
//
// The page data of a layer file are hashed when they are written, when they come
// from elsewhere (Layer.Verify), and when somebody asks; not when a file is
// opened, which costs time in proportion to its index.
const (
	fileMagic   = "forkdLYR"
	fileVersion = 1
	headerSize  = 64
	digestAt    = headerSize - sha256.Size
	blockPages  = 256 // pages per hashed block
	blockSize   = blockPages * Size
	// MaxLimit bounds an address space that has a file: 1 TiB.
	MaxLimit = 1 << 28
)

// ErrCorrupt reports a layer file that is damaged or of an unknown format.
var ErrCorrupt = errors.New("corrupt layer file")

// Digest identifies the contents of a layer: SHA-256 over its header, index
// and block hashes.
type Digest [sha256.Size]byte

func (d Digest) String() string { return fmt.Sprintf("%x", d[:]) }

// layout is what the header of a layer file says, and where the parts lie.
type layout struct {
	limit, stored, holes int64
}

func (l layout) blocks() int64 { return (l.stored + blockPages - 1) / blockPages }
func (l layout) meta() int64 {
	return headerSize + 4*(l.stored+l.holes) + sha256.Size*l.blocks()
}
func (l layout) data() int64 { return (l.meta() + Size - 1) &^ (Size - 1) }
func (l layout) size() int64 { return l.data() + l.stored*Size }

// header fills in everything but the digest.
func (l layout) header() []byte {
	h := append(make([]byte, 0, l.data()), fileMagic...)
	h = binary.LittleEndian.AppendUint32(h, fileVersion)
	h = binary.LittleEndian.AppendUint32(h, Size)
	h = binary.LittleEndian.AppendUint32(h, uint32(l.limit))
	h = binary.LittleEndian.AppendUint32(h, uint32(l.stored))
	h = binary.LittleEndian.AppendUint32(h, uint32(l.holes))
	return h[:headerSize] // a reserved word and the digest are zero
}

// File is what a layer is written to; an *os.File is one.
type File interface {
	io.WriterAt
	Fd() uintptr
}

// WriteTo writes the layer to f as WriteLayer does, without what is as it was
// below. From then on Digest tells what was written. Pages that are not any more
// what a known digest says are an error that wraps ErrCorrupt.
//
// Preconditions: the limit is not above MaxLimit.
func (l *Layer) WriteTo(f File) (Digest, error) {
	d, err := WriteLayer(f, l.limit, l.All)
	if err != nil {
		return d, err
	}
	if known := l.Digest(); known != (Digest{}) && known != d {
		return d, fmt.Errorf("%w: layer %v has become %v", ErrCorrupt, known, d)
	}
	l.saved.Store(&d)
	return d, nil
}

// WriteLayer writes the pages that all yields to f, which must be empty; a nil
// page is a hole. It does not sync. The digest is that of the layer which
// OpenLayer will return.
//
// Preconditions: the numbers ascend and are below limit, limit is not above
// MaxLimit, and the pages do not change meanwhile.
func WriteLayer(f File, limit Number, all func(func(Number, *Page) bool)) (Digest, error) {
	var stored, holes []Number
	var pages []*Page
	next := int64(0)
	for n, p := range all {
		if int64(n) < next || n >= limit || limit > MaxLimit {
			return Digest{}, fmt.Errorf("writing layer: page %d is out of order or beyond the limit of %d pages", n, limit)
		}
		next = int64(n) + 1
		if p == nil {
			holes = append(holes, n)
			continue
		}
		stored, pages = append(stored, n), append(pages, p)
	}
	l := layout{int64(limit), int64(len(stored)), int64(len(holes))}
	// Asking for the blocks first turns a full disk into an early error.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, l.size()); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return Digest{}, fmt.Errorf("allocating %d bytes for layer: %w", l.size(), err)
	}
	hashes, err := writePages(f, l.data(), pages)
	if err != nil {
		return Digest{}, err
	}
	meta := l.header()
	for _, list := range [][]Number{stored, holes} {
		for _, n := range list {
			meta = binary.LittleEndian.AppendUint32(meta, n)
		}
	}
	for _, h := range hashes {
		meta = append(meta, h[:]...)
	}
	digest := metaDigest(meta)
	copy(meta[digestAt:], digest[:])
	if _, err := f.WriteAt(meta[:l.data()], 0); err != nil {
		return Digest{}, fmt.Errorf("writing layer index: %w", err)
	}
	return digest, nil
}

// metaDigest hashes the metadata, skipping the digest's own place.
func metaDigest(meta []byte) Digest {
	h := sha256.New()
	h.Write(meta[:digestAt])
	h.Write(meta[headerSize:])
	return Digest(h.Sum(nil))
}

// writePages writes pages from offset on and returns the hash of each block.
func writePages(f io.WriterAt, offset int64, pages []*Page) ([]Digest, error) {
	hashes := make([]Digest, (len(pages)+blockPages-1)/blockPages)
	err := eachBlock(int64(len(pages))*Size, func(i int, block []byte) error {
		for at := 0; at < len(block); at += Size {
			copy(block[at:], pages[i*blockPages+at/Size][:])
		}
		hashes[i] = sha256.Sum256(block)
		if _, err := f.WriteAt(block, offset+int64(i)*blockSize); err != nil {
			return fmt.Errorf("writing layer pages: %w", err)
		}
		return nil
	})
	return hashes, err
}

// eachBlock calls do for each block of size bytes of page data, from several
// goroutines, until one call fails. block is scratch memory of the block's
// size; only the last block is smaller than blockSize.
func eachBlock(size int64, do func(i int, block []byte) error) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		next int
		fail error
	)
	n := int((size + blockSize - 1) / blockSize)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next <= n && fail == nil
	}
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			buf := make([]byte, min(blockSize, size))
			for i, ok := take(); ok; i, ok = take() {
				err := Guard(func() error { return do(i, buf[:min(blockSize, size-int64(i)*blockSize)]) })
				if err != nil {
					mu.Lock()
					fail = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return fail
}
