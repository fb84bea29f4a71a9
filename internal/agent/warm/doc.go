// Package warm runs warm runtimes: long-lived interpreters that keep their state from one evaluation or run to the next.
//
// A Manager starts them, interrupts what they do, replaces a process that is lost, and holds them across a snapshot. What
// differs between languages is a Kind, an interpreter with its arguments and scripts, and its driver, by which the agent
// has it do something. A direct one, Python, talks to the host on a port of its own. The others, Node.js and bash, are
// relayed: the agent passes on to the host what they write and tell.
//
// The first Python that is warm leaves a spare behind, a frozen process that forks those of further contexts.
//
// A direct runtime obeys commands that arrive as a signal plus a page shared with the agent:
//
//	0      u8   command: 1 hold, 2 interrupt; the runtime sets it to 0 when it has seen it
//	1      u8   state: 1 while the runtime holds
//	2      u8   go: 1 ends the hold
//	3      u8   reseed: 1 if the generators are to be reseeded when the hold ends
//	4      u8   renew: 1 if the generators are to be reseeded at once; the runtime sets it to 0 when it has seen it
//	5      u8   answer: 1 if the runtime will send an answer when the hold ends; written by it before the state
//	6      u8   asleep: 1 if it waits for the end of the hold in the kernel, by the futex that is the first four bytes
//	8      u64  id of the running evaluation, 0 for none; written by the runtime
//	16     u64  id of the evaluation to interrupt
//	24     u64  number of the hold or renewal, echoed when it has ended
//	32     u64  address of the state of Python's generator in the process, or 0; written by the runtime
//	40     u64  the same for numpy's
//	64     64 bytes of seed that are fit for cryptography
//	128    2496 bytes of seed for Python's generator
//	2624   2496 bytes of seed for numpy's
//
// Agent and runtime both map the page. The process runs in a cgroup of its own below Config.Cgroup, so that it can be thawed
// and reseeded while user processes are still held. One that sleeps, and has no other thread and no process that it has
// started, need not be frozen, which is a good part of what a child does before its first evaluation.
//
// Where the states of all generators are known, the agent overwrites them while the runtime stands still, and nobody waits
// for an answer. What is left then, values that go with those states, is the same for every child, and the runtime does
// it before it gives up the interpreter lock.
//
// A branch freezes a runtime where it is, in the middle of an evaluation or of native code, and costs it nothing more in the
// machine that goes on. In a child its generators are renewed before its first instruction, by overwriting their states in
// its memory; its own code sees to those whose states cannot be overwritten, and to values that go with them. A runtime that is
// in native code for long does not get there soon; it is waited for only if something is loaded that needs it.
//
// Lock order: Runtime.op, spare.mu, Runtime.mu, Manager.mu; and Runtime.mu, shell.state; and relay.mu, relay.ends. Runtime.op is
// held while a process starts, holds or is released, spare.mu while a process is forked, relay.mu for as long as a client does
// not take what is sent to it; the others only for moments.
package warm
