package interp

// strongOrder tells that the host keeps loads and stores in order, but for loads
// that overtake earlier stores.
const strongOrder = false

// Parallel tells that this host's memory model is as strong as RISC-V's, so that
// several harts may execute in parallel.
const Parallel = true

// fence is a full memory barrier.
func fence()
