// Package quiet makes system calls that do not wake the Go runtime's monitor thread.
//
// When every processor of a Go program is idle, the runtime's monitor sleeps. The next ordinary system call wakes it, and
// it then ticks every 20 µs for as long as the program is busy. In the agent of a restored child that would be the larger
// part of a refresh: dozens of timer interrupts, and the pages they dirty, in every child of a snapshot. A raw system call
// does not tell the runtime, so the monitor sleeps on.
//
// Sockets and files that a refresh uses are made here too, ahead of it.
//
// The price is that a raw system call keeps its processor while it runs. So everything here either cannot block or is
// non-blocking, and waits happen in the runtime's poller.
package quiet
