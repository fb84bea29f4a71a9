//go:build linux

#include "textflag.h"

// func enter(x *Context, start uintptr)
//
// Native code uses all registers but SP and leaves the stack alone: a signal, or
// a fault on guest memory, finds the return address below on top of it, as if
// this function had been interrupted itself.
TEXT ·enter(SB), NOSPLIT, $8-16
	MOVQ start+8(FP), AX
	MOVQ x+0(FP), BP
	CALL AX
	RET

// func hasLZCNT() bool
TEXT ·hasLZCNT(SB), NOSPLIT, $0-1
	MOVL $0x80000001, AX
	XORL CX, CX
	CPUID
	SHRL $5, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET
