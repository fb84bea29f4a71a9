// Package warm runs warm runtimes: long-lived interpreters that the host talks to directly, on a port of their own.
//
// A Manager starts them, interrupts an evaluation, replaces a process that is lost, and holds them across a snapshot. What
// differs between languages is a Kind: an interpreter, its arguments and a script. The script serves the frames of package
// wire and obeys commands that arrive as a signal plus a page shared with the agent:
//
//	0      u8   command: 1 hold, 2 interrupt; the runtime sets it to 0 when it has seen it
//	1      u8   state: 1 while the runtime holds
//	2      u8   go: 1 ends the hold
//	3      u8   reseed: 1 if the generators are to be reseeded when the hold ends
//	8      u64  id of the running evaluation, 0 for none; written by the runtime
//	16     u64  id of the evaluation to interrupt
//	24     u64  number of the hold, echoed when it has ended
//	64     2560 bytes of seed; the first 64 are fit for cryptography
//
// The agent reaches the page with pread and pwrite, the runtime maps it; both see the same page cache. The process runs in
// a cgroup of its own below Config.Cgroup, so that it can be thawed and reseeded while user processes are still held.
//
// Lock order: Runtime.op, Runtime.mu, Manager.mu. Runtime.op is held while a process starts, holds or is released; the
// other two only for moments.
package warm
