// SPDX-License-Identifier: MIT OR Apache-2.0
//! On which CPU a thread is to run: an idle one, of an idle core if there is any
//! (paper 3b); at home before anywhere else, where programs have seats (paper 1).

use usher_model::CpuSet;

use crate::c;

/// CPUs that the rules know: those with lower numbers.
pub const CPUS_MAX: usize = 512;
/// LLCs that have queues of their own; those behind share them.
pub const LLCS_MAX: usize = 64;
/// Words of a set.
pub const CPU_WORDS: usize = CPUS_MAX / 64;

/// `struct cpu_set`: a bit for each CPU.
pub type CpuWords = [u64; CPU_WORDS];

/// A set as the rules have it; CPUs beyond [`CPUS_MAX`] are left out.
pub fn words_of(cpus: &CpuSet) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    for cpu in cpus.iter().map(|cpu| cpu as usize) {
        if let Some(word) = words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    words
}

/// `struct place`: where a CPU lies.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// 0: no such CPU.
    pub known: u32,
    /// The number of its LLC.
    pub llc: u32,
    /// The kernel's number of its node.
    pub node_number: u32,
    /// Nothing.
    pub unused: u32,
    /// LLCs of its node, by bit.
    pub node_llcs: u64,
    /// The CPUs of its core, itself among them.
    pub core: CpuWords,
    /// Those of its LLC.
    pub near: CpuWords,
    /// Those of its node.
    pub node: CpuWords,
}

/// `struct outlook`: what a choice is made from.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleScanCtx {
    /// Idle CPUs.
    pub idle: CpuWords,
    /// Those whose cores are idle with all their threads.
    pub cores: CpuWords,
    /// Where the thread may run.
    pub allowed: CpuWords,
    /// Where it is at home; all of those, if it has no seat.
    pub preferred: CpuWords,
    /// CPUs that run guests.
    pub borrowers: CpuWords,
    /// Nothing to the choice: the scheduler's own list of what is still to be looked at.
    pub remaining: CpuWords,
    /// Nothing to the choice: nodes that the scheduler has not looked at.
    pub unread_nodes: u64,
}

fn found(cpu: i32) -> Option<u32> {
    u32::try_from(cpu).ok()
}

/// The CPU for a thread that last ran on `last`, which lies `here`; `None`: it has to wait.
pub fn choose_cpu(smt: bool, scan: &IdleScanCtx, last: u32, here: &Place) -> Option<u32> {
    // SAFETY: both are laid out as the header has them, and only read.
    found(unsafe { c::rules_choose_cpu(smt, scan, last, here) })
}

/// The same where none could be better, whatever is not in sight.
pub fn choose_best(smt: bool, scan: &IdleScanCtx, last: u32, here: &Place) -> Option<u32> {
    // SAFETY: both are laid out as the header has them, and only read.
    found(unsafe { c::rules_choose_best(smt, scan, last, here) })
}

/// The same, of idle cores alone.
pub fn choose_core(scan: &IdleScanCtx, last: u32, here: &Place) -> Option<u32> {
    // SAFETY: both are laid out as the header has them, and only read.
    found(unsafe { c::rules_choose_core(scan, last, here) })
}

/// Whether nobody works on this core but guests.
pub fn only_borrowers_run(core: &CpuWords, scan: &IdleScanCtx) -> bool {
    // SAFETY: both are laid out as the header has them, and only read.
    unsafe { c::rules_only_borrowers_run(core, scan) }
}

/// Where a thread with that seat is at home; `None`: it may run nowhere there.
pub fn find_preferred(allowed: &CpuWords, seat: &CpuWords) -> Option<CpuWords> {
    let mut preferred = [0; CPU_WORDS];
    // SAFETY: sets as the header has them; the first is written, and this function's.
    let any = unsafe { c::rules_find_preferred(&mut preferred, allowed, seat) };
    any.then_some(preferred)
}
