// Package wire is what the daemon and a cell say to each other, over one Unix socket
// on which the cell listens.
//
// Each connection begins with an Opening: it is the control connection or the link, of
// which there is one each at a time.
//
// On the control connection (Conn) both sides send messages: a header in JSON, bytes
// that are too many for that, and open files. The daemon sends requests, each of which
// is answered, and notices, which are not; the cell sends answers and events. What
// follows each other on the connection is taken up in that order. Who sends never waits for
// the other side: what that does not take up yet is kept, up to a bound (sender).
//
// The link (Link) carries all streams into guests, in frames. A stream is a connection to
// a port of a guest; bytes that are on their way and not consumed are bounded by a window
// in each direction, so that one that nobody reads holds up no other. At the daemon's
// end a Stream is a net.Conn.
//
// Neither side trusts the other: a cell may have been taken over by its guest. All
// lengths are checked before anything is allocated by them, and a connection on which
// something makes no sense is closed.
//
// Lock order: Stream.mu, Guests.mu, Link.mu. A sender's is a leaf.
package wire
