// Package amd64 encodes x86-64 machine code for the translator: one method
// call appends one instruction to a caller's buffer.
//
// It is an encoder, not an assembler: the caller picks the registers, the
// widths and the instruction; the package picks the short forms of immediates,
// displacements and backward branches. A choice of form never changes what the
// instruction does to the flags.
//
// Invariants:
//
//   - An instruction is written whole or not at all. The first that does not
//     fit sets Overflow and ends emission, so Bytes is always a prefix of the
//     program. Bytes of the buffer past Len are scratch until then; nothing
//     is ever written past its capacity.
//   - Emission never fails half way and never panics on operands: a width an
//     instruction does not have, an index of RSP, a branch that cannot reach
//     are remembered, and Finish reports them. Code for which Finish returned
//     an error must not run.
//   - Code is relocatable except for JmpTo and JccTo, which depend on the base
//     given to Reset.
//   - In steady state nothing is allocated: Reset keeps the label tables.
//
// An Asm has no lock: it belongs to one goroutine at a time. The package makes
// bytes only; whether the host can run them (BMI1, BMI2, LZCNT, POPCNT, FMA
// are used by the methods that say so) is the caller's to check.
package amd64
