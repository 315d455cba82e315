/* SPDX-License-Identifier: Apache-2.0
 * The exported dlsym. Every name that is not ours leaves by a jump, so that libc sees the caller's own return address:
 * RTLD_NEXT, RTLD_DEFAULT and namespaces are answered by it. Only names that begin with "nccl" reach C code, and
 * those that the C code doesn't want leave by the same jump. Its third argument is the caller's return address; its
 * answer -1 means that there is no such function, where libc would find ours. */
#if !defined(__x86_64__)
#error "echo-tp: the dlsym hook is written for x86-64 only"
#endif

	.text
	.globl	dlsym
	.type	dlsym, @function
	.p2align 4
dlsym:
	.cfi_startproc
	endbr64
	testq	%rsi, %rsi
	je	.Lreal
	/* Byte by byte: a wider load could cross into an unmapped page. */
	cmpb	$'n', (%rsi)
	jne	.Lreal
	cmpb	$'c', 1(%rsi)
	jne	.Lreal
	cmpb	$'c', 2(%rsi)
	jne	.Lreal
	cmpb	$'l', 3(%rsi)
	jne	.Lreal
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	movq	24(%rsp), %rdx
	call	echo_tp_dlsym_ours
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rax, %rax
	je	.Lreal
	cmpq	$-1, %rax
	je	.Lmissing
	ret
.Lmissing:
	xorl	%eax, %eax
	ret
.Lreal:
	movq	echo_tp_next_dlsym(%rip), %rax
	testq	%rax, %rax
	je	.Lresolve
	jmp	*%rax
.Lresolve:
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	echo_tp_resolve_dlsym
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	movq	echo_tp_next_dlsym(%rip), %rax
	testq	%rax, %rax
	je	.Lnone
	jmp	*%rax
.Lnone:
	ret
	.cfi_endproc
	.size	dlsym, .-dlsym

	.section .note.GNU-stack, "", @progbits
