// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func compatSyscall(nr, a, b, c uintptr) (ret uintptr)
//
// The system call table of 32-bit programs, from a 64-bit one: i386's registers, int 0x80.
TEXT ·compatSyscall(SB), NOSPLIT, $0-40
	MOVQ nr+0(FP), AX
	MOVQ a+8(FP), BX
	MOVQ b+16(FP), CX
	MOVQ c+24(FP), DX
	INT  $0x80
	MOVQ AX, ret+32(FP)
	RET
