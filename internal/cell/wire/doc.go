// Package wire is what the daemon and a cell say to each other, over one Unix socket
// on which the cell listens.
//
// Each connection begins with an Opening: it is the control connection, of which
// there is one at a time, or a stream into a guest.
//
// On the control connection (Conn) both sides send messages: a header in JSON, bytes
// that are too many for that, and open files. The daemon sends requests, each of which
// is answered, and notices, which are not; the cell sends answers and events. What
// follows each other on the connection is taken up in that order.
//
// A stream (Stream) carries bytes both ways in frames, so that an end and a reset can
// be told apart.
//
// Neither side trusts the other: a cell may have been taken over by its guest. All
// lengths are checked before anything is allocated by them, and a connection on which
// something makes no sense is closed.
//
// Lock order: Conn.mu, Stream.reading and Stream.writing are leaves.
package wire
