// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stack pointer of the calling thread, to estimate how full the stack is.
//!
//! The address of a local variable would do, but the address sanitizer places local variables
//! outside the stack in order to detect uses after the return of their function.

/// Returns the address of the end of the stack, which grows downwards; within a page, on processors
/// other than x86-64 and AArch64.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction copies a register, and accesses no memory.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction copies a register, and accesses no memory.
    unsafe {
        std::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let here = 0_u8;
        pointer = std::ptr::from_ref(&here).addr();
    }
    pointer
}
