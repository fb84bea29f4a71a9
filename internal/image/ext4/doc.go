// Package ext4 makes empty ext4 file systems: the scratch disk over which a
// machine lays the writable part of its root.
//
// A file system made here is meant to live in a page store, where a page that
// was never written costs nothing. So it is written in as few 4 KiB pages as
// possible, independent of its size but for one page of group descriptors per
// 16 GiB, and nothing is left for the kernel to initialise in the background,
// which would dirty pages in every machine:
//
//   - no journal: a machine's memory and disks are frozen at the same instant,
//     so there is no crash between them to recover from;
//   - the bitmaps of all groups but the first and last are marked uninitialised
//     (gdt_csum) and inode tables as zeroed, which a fresh disk is;
//   - one superblock, no backups (sparse_super2 with none named);
//   - group metadata stays in its group (no flex_bg), 32-byte descriptors (no
//     64bit), and no metadata checksums, which would cost the guest time.
//
// Inodes are plentiful, one per 8 KiB, since their tables take no space until
// they are used. References are to the kernel's Documentation/filesystems/ext4.
package ext4
