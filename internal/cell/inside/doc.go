// Package inside is what runs in a cell: machines, the layers and sources that they
// are made of, and the streams into them. It does as the daemon says, which it hears
// on a socket (package wire), and it goes on when the daemon is gone.
//
// Invariants:
//   - Nothing here opens a file or names one: what is needed comes over the socket.
//   - A layer is known by a number, which the daemon gives to those that it sends and
//     the cell to those that its own machines have sealed. The cell keeps what the
//     daemon has sent until it says otherwise, and a sealed layer as long as a source
//     or a machine needs it. It may replace those that it has numbered, by others of the
//     same contents: the daemon asks which ones a source has now (see tidy.go).
//   - What a daemon has said is done before the next one is heard.
//   - A machine that is dormant has executed nothing.
//   - A machine is packed when it rests, and unpacked as long as it is pinned; see
//     rest.
//
// Lock order: Server.arranging, Server.layout, vm.starting, a machine's own; Server.mu and
// vm.mu, in that order, are leaves, but for the control connection's lock.
package inside
