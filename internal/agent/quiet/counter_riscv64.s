#include "textflag.h"

// func rdtime() uint64
TEXT ·rdtime(SB), NOSPLIT, $0-8
	RDTIME	X10
	MOV	X10, ret+0(FP)
	RET
