//go:build !amd64 && !arm64

package interp

// strongOrder tells that the host keeps loads and stores in order, but for loads
// that overtake earlier stores.
const strongOrder = true

// Parallel tells that this host's memory model is as strong as RISC-V's, so that
// several harts may execute in parallel. It is not known to be, and one hart at a
// time needs no fences.
const Parallel = false

func fence() {}
