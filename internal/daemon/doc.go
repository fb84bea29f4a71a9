// Package daemon runs what serves the APIs as a process: it listens, guards against
// a second one, and ends in order. Package launch starts such a process.
//
// Invariants:
//   - The Unix socket in a home is made only while the backend of that home is
//     open. The backend holds the home's lock, so whatever socket was there
//     before belongs to nobody and may be replaced.
//   - Without a token nothing but loopback and the Unix socket is listened on.
//   - Everything in a home is for its owner only.
//
// There are no locks to order.
package daemon
