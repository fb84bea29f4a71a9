// Package boot prepares what a guest starts from: it reads the header of a
// RISC-V Linux image, to know where to put it, and writes the initramfs.
//
// Both sides are pure: nothing here opens files or touches guest memory. Output
// depends on the arguments alone, so equal input gives equal bytes, and header
// fields of a hostile kernel file are checked before anyone computes with them.
package boot
