package ext4

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
)

var le = binary.LittleEndian

// formatter writes the blocks of a file system and keeps the first error.
type formatter struct {
	geometry
	Options
	disk    io.WriterAt
	written int
	err     error
}

func (f *formatter) write(block uint32, data []byte) {
	if f.err != nil {
		return
	}
	_, f.err = f.disk.WriteAt(data, int64(block)*BlockSize)
	f.written += len(data) / BlockSize
}

func (f *formatter) seconds() uint32 { return uint32(f.Time.Unix()) }

// writeGroup0 writes the bitmaps, inodes and directories of the first group.
func (f *formatter) writeGroup0() {
	f.write(f.start(0), bitmap(f.used(0), f.length(0)))
	f.write(f.start(0)+1, bitmap(firstInode, f.inodesPerGroup))
	table := make([]byte, BlockSize)
	f.directoryInode(table[(rootInode-1)*inodeSize:], 0o755, 3, f.rootBlock())
	f.directoryInode(table[(firstInode-1)*inodeSize:], 0o700, 2, f.foundBlock())
	f.write(f.start(0)+2, table)

	root := make([]byte, BlockSize)
	at := dirent(root, 0, rootInode, ".", 12)
	at = dirent(root, at, rootInode, "..", 12)
	dirent(root, at, firstInode, "lost+found", BlockSize-at)
	f.write(f.rootBlock(), root)

	found := make([]byte, BlockSize)
	at = dirent(found, 0, firstInode, ".", 12)
	dirent(found, at, rootInode, "..", BlockSize-at)
	f.write(f.foundBlock(), found)
}

// writeLastBitmap writes the block bitmap of the last group, which may not be
// marked uninitialised: it is where the disk's end is recorded.
func (f *formatter) writeLastBitmap() {
	if last := f.groups - 1; last > 0 {
		f.write(f.start(last), bitmap(f.used(last), f.length(last)))
	}
}

// bitmap returns a block of bits: the first used ones are set, and so are those
// at and beyond size, which stand for nothing.
func bitmap(used, size uint32) []byte {
	b := make([]byte, BlockSize)
	set := func(from, to uint32) {
		for ; from < to; from++ {
			b[from/8] |= 1 << (from % 8)
		}
	}
	set(0, used)
	set(size, 8*BlockSize)
	return b
}

// directoryInode fills in the inode of a directory of one block. See "Index
// Nodes" and "Extent Tree".
func (f *formatter) directoryInode(b []byte, perm uint16, links uint16, block uint32) {
	const (
		typeDirectory = 0x4000 // S_IFDIR
		extentsFlag   = 0x80000
		extentMagic   = 0xf30a
		extentsInside = 4  // that fit in the inode
		extraSize     = 32 // bytes in use behind the first 128
	)
	le.PutUint16(b[0x0:], typeDirectory|perm)
	le.PutUint32(b[0x4:], BlockSize) // i_size_lo
	for _, at := range []int{0x8, 0xc, 0x10, 0x90} {
		le.PutUint32(b[at:], f.seconds()) // i_atime, i_ctime, i_mtime, i_crtime
	}
	le.PutUint16(b[0x1a:], links)
	le.PutUint32(b[0x1c:], BlockSize/512) // i_blocks_lo
	le.PutUint32(b[0x20:], extentsFlag)
	extents := b[0x28:]
	le.PutUint16(extents[0:], extentMagic)
	le.PutUint16(extents[2:], 1) // eh_entries
	le.PutUint16(extents[4:], extentsInside)
	le.PutUint16(extents[16:], 1) // ee_len
	le.PutUint32(extents[20:], block)
	le.PutUint16(b[0x80:], extraSize)
}

// dirent writes one directory entry of length bytes and returns where the next
// one goes. See "Directory Entries".
func dirent(b []byte, at int, inode uint32, name string, length int) int {
	const typeDirectory = 2
	le.PutUint32(b[at:], inode)
	le.PutUint16(b[at+4:], uint16(length))
	b[at+6] = byte(len(name))
	b[at+7] = typeDirectory
	copy(b[at+8:], name)
	return at + length
}

// writeDescriptors writes the group descriptors. See "Block Group Descriptors".
func (f *formatter) writeDescriptors() {
	const (
		inodeUninit = 1 << iota // the inode bitmap is all free
		blockUninit             // the block bitmap has only the group's tables
		inodeZeroed             // the inode table is zero
	)
	table := make([]byte, f.gdtBlocks*BlockSize)
	for group := range f.groups {
		b := table[group*descSize:][:descSize]
		flags := uint16(inodeZeroed)
		freeInodes, directories := f.inodesPerGroup, uint16(0)
		if group == 0 {
			freeInodes -= firstInode
			directories = 2
		} else {
			flags |= inodeUninit
			if group != f.groups-1 {
				flags |= blockUninit
			}
		}
		le.PutUint32(b[0x0:], f.start(group))   // bg_block_bitmap_lo
		le.PutUint32(b[0x4:], f.start(group)+1) // bg_inode_bitmap_lo
		le.PutUint32(b[0x8:], f.start(group)+2) // bg_inode_table_lo
		le.PutUint16(b[0xc:], uint16(f.length(group)-f.used(group)))
		le.PutUint16(b[0xe:], uint16(freeInodes))
		le.PutUint16(b[0x10:], directories)
		le.PutUint16(b[0x12:], flags)
		le.PutUint16(b[0x1c:], uint16(freeInodes)) // bg_itable_unused_lo
		le.PutUint16(b[0x1e:], f.descriptorSum(group, b))
	}
	f.write(1, table)
}

// descriptorSum is the CRC-16 over UUID, group number and descriptor up to the
// sum itself.
func (f *formatter) descriptorSum(group uint32, desc []byte) uint16 {
	sum := crc16(0xffff, f.UUID[:])
	sum = crc16(sum, le.AppendUint32(nil, group))
	return crc16(sum, desc[:descSize-2])
}

// crc16 has the reflected polynomial 0x8005, as the kernel's function of that
// name.
func crc16(sum uint16, data []byte) uint16 {
	for _, b := range data {
		sum ^= uint16(b)
		for range 8 {
			sum = sum>>1 ^ 0xa001*(sum&1)
		}
	}
	return sum
}

// Feature flags in the superblock.
const (
	compatExtAttr      = 0x8
	compatDirIndex     = 0x20
	compatSparseSuper2 = 0x200
	incompatFileType   = 0x2
	incompatExtents    = 0x40
	roLargeFile        = 0x2
	roHugeFile         = 0x8
	roGDTChecksum      = 0x10
	roDirNlink         = 0x20
	roExtraISize       = 0x40
)

// writeSuperblock writes block 0. See "Super Block".
func (f *formatter) writeSuperblock() {
	block := make([]byte, BlockSize)
	b := block[1024:]
	put16 := func(at int, v uint16) { le.PutUint16(b[at:], v) }
	put32 := func(at int, v uint32) { le.PutUint32(b[at:], v) }

	put32(0x0, f.groups*f.inodesPerGroup)
	put32(0x4, f.blocks)
	put32(0xc, f.freeBlocks())
	put32(0x10, f.freeInodes())
	put32(0x18, 2) // s_log_block_size: 1024 << 2
	put32(0x1c, 2) // s_log_cluster_size
	put32(0x20, blocksPerGroup)
	put32(0x24, blocksPerGroup) // clusters per group
	put32(0x28, f.inodesPerGroup)
	put32(0x30, f.seconds()) // s_wtime
	put16(0x36, 0xffff)      // s_max_mnt_count: no limit
	put16(0x38, 0xef53)      // s_magic
	put16(0x3a, 1)           // s_state: clean
	put16(0x3c, 1)           // s_errors: continue
	put32(0x40, f.seconds()) // s_lastcheck
	put32(0x4c, 1)           // s_rev_level: dynamic inode sizes
	put32(0x54, firstInode)
	put16(0x58, inodeSize)
	put32(0x5c, compatExtAttr|compatDirIndex|compatSparseSuper2)
	put32(0x60, incompatFileType|incompatExtents)
	put32(0x64, roLargeFile|roHugeFile|roGDTChecksum|roDirNlink|roExtraISize)
	copy(b[0x68:], f.UUID[:])
	seed := sha256.Sum256(f.UUID[:])
	copy(b[0xec:], seed[:16]) // s_hash_seed
	b[0xfc] = 1               // s_def_hash_version: half MD4
	put32(0x100, 0xc)         // s_default_mount_opts: user_xattr, acl
	put32(0x108, f.seconds()) // s_mkfs_time
	put16(0x15c, 32)          // s_min_extra_isize
	put16(0x15e, 32)          // s_want_extra_isize
	put32(0x160, 2)           // s_flags: directory hashes of unsigned characters
	f.write(0, block)
}
