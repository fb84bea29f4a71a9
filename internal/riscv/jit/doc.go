// Package jit translates pages of RISC-V code to machine code of the host. It
// exists for amd64 on Linux; elsewhere Supported is false and nothing else here
// may be used.
//
// What is translated at a time is a region, which is a trace: the instructions of
// one page that control passes from an entry on if it takes no branch, following
// direct jumps inside the page, until it comes to code that there is already. At the
// borders of blocks nine guest registers live in host registers and the others in
// memory, so that there is no state at borders and any block can lead to any other.
// What other host registers have there are copies, which only code counts on that nothing
// else leads to: that behind a branch, and a loop that is done again. In between each
// guest register is where it is best kept, and what the guest cannot see does not happen: a
// result that is replaced before anybody looks is not stored, words are sign-extended when
// the upper half is asked for, and two shifts and an OR that make a rotation are one. A
// page has a table of entries, and jumps to other pages go through such
// tables. A jump inside the page to what was not translated yet is a link: it goes
// through a slot, a word of data that leads back to Go until there is code. Code
// itself never changes once it is published, and is shared by all machines that
// have the page in common.
//
// Loads and stores look into the TLB of package mmu; a run of accesses through
// one base register looks once. Whatever native code cannot do, from a TLB miss
// to a system instruction, it returns to its caller, which has the reference
// semantics execute the instruction and resumes behind it. On the way out registers
// are brought where they are at borders, and on the way back where they were: out of
// line, by code of each place.
//
// Invariants. Native code touches the Context, the hart, the banks, and the pages
// that the banks lead to; it never stores a Go pointer, never uses the stack, and
// never runs longer than its budget of instructions allows: every block charges
// for its instructions before it executes them, so that on return the count is
// exact. Memory that holds code is mapped twice, once writable and once
// executable.
//
// Lock order: Cache.mu is a leaf.
package jit
