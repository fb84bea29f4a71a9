package ext4

import (
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// BlockSize is the block size in bytes, equal to a guest's page.
	BlockSize = 4096
	// MinSize and MaxSize bound the size of a file system, in bytes.
	MinSize = 1 << 20
	MaxSize = 16<<40 - BlockSize

	blocksPerGroup = 8 * BlockSize // one block of bitmap
	bytesPerInode  = 8 << 10
	inodeSize      = 256
	inodesPerBlock = BlockSize / inodeSize
	descSize       = 32
	descsPerBlock  = BlockSize / descSize

	rootInode  = 2
	firstInode = 11 // the first that is not reserved; lost+found's
	minData    = 64 // data blocks that make a last, partial group worth having
)

// ErrSize is wrapped by the error about a size that cannot be formatted.
var ErrSize = errors.New("ext4 size out of range")

// Options describe a file system. The same options give the same bytes.
type Options struct {
	Size int64     // of the disk, in bytes; what is no whole block stays unused
	UUID [16]byte  // also the seed of directory hashes
	Time time.Time // of creation
}

// Info tells what a new file system offers.
type Info struct {
	Size       int64 // usable bytes, before any metadata
	Free       int64 // bytes for files and directories
	Inodes     int64
	FreeInodes int64
	Written    int // pages written to the disk
}

// geometry is how the disk is divided.
type geometry struct {
	blocks         uint32
	groups         uint32
	gdtBlocks      uint32 // of group descriptors, behind the superblock
	inodesPerGroup uint32
	tableBlocks    uint32 // of inodes, per group
}

// Format writes an empty file system to disk, which must read as zeros, in whole
// aligned blocks.
func Format(disk io.WriterAt, o Options) (Info, error) {
	g, err := layout(o.Size)
	if err != nil {
		return Info{}, err
	}
	f := &formatter{geometry: g, Options: o, disk: disk}
	f.writeGroup0()
	f.writeLastBitmap()
	f.writeDescriptors()
	f.writeSuperblock()
	if f.err != nil {
		return Info{}, fmt.Errorf("formatting ext4: %w", f.err)
	}
	return Info{
		Size: int64(g.blocks) * BlockSize, Free: int64(f.freeBlocks()) * BlockSize,
		Inodes: int64(g.groups) * int64(g.inodesPerGroup), FreeInodes: int64(f.freeInodes()),
		Written: f.written,
	}, nil
}

func layout(size int64) (geometry, error) {
	if size < MinSize || size > MaxSize {
		return geometry{}, fmt.Errorf("%w: %d bytes, possible are %d to %d", ErrSize, size, MinSize, int64(MaxSize))
	}
	g := geometry{blocks: uint32(size / BlockSize)}
	perGroup := min(g.blocks, blocksPerGroup)
	g.inodesPerGroup = roundUp(perGroup*(BlockSize/1024)/(bytesPerInode/1024), inodesPerBlock)
	g.tableBlocks = g.inodesPerGroup / inodesPerBlock
	g.groups = divUp(g.blocks, blocksPerGroup)
	if rest := g.blocks % blocksPerGroup; g.groups > 1 && rest > 0 && rest < g.overhead()+minData {
		// The last group could hold its own tables only.
		g.blocks -= rest
		g.groups--
	}
	g.gdtBlocks = divUp(g.groups, descsPerBlock)
	return g, nil
}

func divUp(n, by uint32) uint32   { return (n-1)/by + 1 }
func roundUp(n, to uint32) uint32 { return divUp(n, to) * to }

// overhead returns the blocks that every group needs for its own tables: two
// bitmaps and the inodes.
func (g geometry) overhead() uint32 { return 2 + g.tableBlocks }

// start returns the first block of a group's own tables.
func (g geometry) start(group uint32) uint32 {
	if group == 0 {
		return 1 + g.gdtBlocks
	}
	return group * blocksPerGroup
}

// length returns how many blocks a group has.
func (g geometry) length(group uint32) uint32 {
	return min(blocksPerGroup, g.blocks-group*blocksPerGroup)
}

// The first data blocks hold the two directories that exist.
func (g geometry) rootBlock() uint32  { return g.start(0) + g.overhead() }
func (g geometry) foundBlock() uint32 { return g.rootBlock() + 1 }

// used returns how many blocks of a group are taken, which are its first ones.
func (g geometry) used(group uint32) uint32 {
	if group == 0 {
		return g.foundBlock() + 1
	}
	return g.overhead()
}

func (g geometry) freeBlocks() uint32 {
	free := uint32(0)
	for group := range g.groups {
		free += g.length(group) - g.used(group)
	}
	return free
}

func (g geometry) freeInodes() uint32 { return g.groups*g.inodesPerGroup - firstInode }

// Overhead returns how many bytes the tables of a file system take at most, on a
// disk of some size. Of a size that Format refuses that is nothing.
func Overhead(size int64) int64 {
	g, err := layout(size)
	if err != nil {
		return 0
	}
	return (1 + int64(g.gdtBlocks) + int64(g.groups)*int64(g.overhead())) * BlockSize
}
