// Package agent is the host's side of the guest agent: a Client for one guest.
//
// The client reaches the guest through a dial function, so it does not care whether that is vsock, or a Unix socket in a
// test. Every operation is a connection of its own and ends when its context does, except that connections to warm
// runtimes are kept between evaluations.
//
// The guest is not trusted: frames, entry counts and output have limits, and what it says is data. Errors are *wire.Error
// when the guest answered with one, the context's error when that ended, *TimeoutError and *RestartedError from Eval, and
// otherwise wrap ErrLost.
//
// Lock order: evaluator's turn, Client.mu. A Process has a lock of its own, under which nothing else is locked.
package agent
