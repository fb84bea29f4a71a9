// Package guest is the agent's server: it answers the host's requests inside a guest.
//
// It knows nothing of being process 1 or of vsock, so it runs as an ordinary process in tests. It runs commands, works on
// files, owns the warm runtimes, and keeps the fork contract: Quiesce holds everything that runs user code, Refresh gives
// a restored child its identity and lets go only when every step has succeeded.
//
// Invariants: a connection carries one operation, answered by OK or Error before anything else. Nothing the host sends is
// buffered without a limit. While the server is quiesced, no process can be started and none runs. A command belongs to
// the generation in which it was started: the connection of an earlier generation that breaks does not end its command,
// because it was the restore that broke it. A kept process belongs to no connection and no generation; whoever is attached to
// it gets all that it writes, in order, and holds it up by not reading.
//
// An idle server has no timer and no goroutine that runs. While quiesced it answers one connection at a time, on the accepting
// goroutine, or on that which waits for a refresh, since that is what a restored child is restored to.
//
// Lock order: Server.held, Server.state, then the locks of package warm; listener.mu, keeper.mu, kept.mu, execution.ending; then those of
// package proc. Server.mu is innermost. Nothing but a listener.mu is held while a client is written to.
package guest
