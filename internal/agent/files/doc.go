// Package files reads and changes files inside a guest's root for the host.
//
// Invariants: every path is resolved by the kernel inside the root (openat2 with RESOLVE_IN_ROOT), so that neither ".."
// nor a symbolic link leads out of it, also while user code swaps links under our feet. Nothing is resolved twice: what was
// opened is described, changed and renamed through its descriptor or through that of its directory. Data streams; no
// file is held in memory. Errors are *wire.Error.
package files
