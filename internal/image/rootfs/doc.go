// Package rootfs holds a guest's file tree in memory and writes it as a
// read-only EROFS image.
//
// Only metadata lives on the heap: the bytes of files stay in a [Spool] (one
// unlinked temporary file) until the image is written. Owners, modes, set-uid
// bits and device numbers are therefore those of the image, never of the host,
// and building a tree needs no privilege.
//
// Invariants:
//
//   - No name can lead out of the tree. Every path is split into components,
//     ".." is refused in names that create and clamped at the root in symbolic
//     links, and a link is only ever followed inside the tree.
//   - A name is at most 255 bytes and holds no NUL and no slash.
//   - Two names may share one [Node]: that is a hard link. EROFS images written
//     here store such a file once per name, because the writer in use cannot
//     share an inode; contents, owner and mode are the same.
//
// A Tree is not safe for concurrent use; a Spool is, so that several packages
// can be unpacked at once and merged into the tree afterwards in a fixed order.
// There are no locks.
package rootfs
