// Package conn has what connections of ours (net.Conn) are made of, whatever carries
// their bytes: a Buffer for what was not read yet, and a Deadline.
//
// Neither has a lock. Whoever owns one guards it with the lock of the condition that its
// readers or writers wait for.
package conn
