// Package image builds what a guest boots from and keeps it on disk: a kernel,
// an initramfs with the guest agent, and a read-only root file system.
//
// [Build] makes an image from a Debian mirror (package debian), [Open] finds one
// again. An image is a directory, <home>/images/<key>/, with four files:
//
//	kernel          raw riscv64 Linux image
//	rootfs.erofs    root file system, uncompressed EROFS with 4 KiB blocks
//	initramfs.cpio  kernel modules, then the agent as /init; not compressed
//	manifest.json   what the image was made from, with the hash of each file
//
// Invariants:
//
//   - An image directory is complete and never changes. It is written under a
//     name that starts with a dot, flushed to disk, then renamed; whatever is
//     left under such a name by a crash is removed by the next build.
//   - The key is a hash of all that went in: package versions and hashes, the
//     agent, the version of this code. The same key means the same contents.
//   - The other files are only trusted after the manifest's record of them was
//     compared: size and modification time always, the hash when the time
//     differs, or on request ([Image.Verify]).
//
// Images that differ in the agent alone share their kernel and root file system
// through hard links.
//
// One lock file, <home>/images/.lock, is held by whoever writes below images/;
// readers take no lock. Within it, a mutex keeps progress calls apart; nothing
// else is taken while that is held.
package image
