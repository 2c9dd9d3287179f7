// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selection of a CPU for a thread that wakes. A CPU of an idle core comes before an idle CPU of a
//! busy core (paper 3b). If programs have seats, the CPUs of the thread's own seat come first
//! (paper 1). The functions call those of `choose.h`, which explains the order. Each function makes
//! a few passes over the words of a CPU set, of which there are at most 32 (`CPU_WORDS`), for 2,048
//! CPUs. Without a suitable CPU, the result is `None`, and the thread has to wait.

use usher_model::CpuSet;

/// All CPU numbers are below this limit.
pub const CPUS_MAX: usize = 2048;
/// Number of LLCs with run queues of their own; further LLCs share these queues.
pub const LLCS_MAX: usize = 64;
/// Number of 64-bit words of a CPU set.
pub const CPU_WORDS: usize = CPUS_MAX / 64;

/// Value of [`Place::known`] for an isolated CPU: `PLACE_ISOLATED` of sets.h.
pub const PLACE_ISOLATED: u32 = 2;

/// `struct cpu_set`: one bit per CPU.
pub type CpuWords = [u64; CPU_WORDS];

/// Converts a set of CPUs; CPU numbers from [`CPUS_MAX`] on are left out.
pub fn words_of(cpus: &CpuSet) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    for cpu in cpus.iter().map(|cpu| cpu as usize) {
        if let Some(word) = words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    words
}

/// Returns the bitmask of the words that contain a CPU of the set.
pub fn word_mask(set: &CpuWords) -> u32 {
    let words = set.iter().enumerate().filter(|(_, word)| **word != 0);
    words.fold(0, |mask, (at, _)| mask | 1 << at)
}

/// `struct place`: place of a CPU in the topology.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// 0: there is no such CPU. [`PLACE_ISOLATED`]: the CPU is isolated.
    pub known: u32,
    /// Number of the CPU's LLC.
    pub llc: u32,
    /// Number of the CPU's NUMA node in the kernel.
    pub node_number: u32,
    /// Capacity: 1024 for the fastest CPUs. Without effect if the machine has one class.
    pub capacity: u16,
    /// Class of CPUs of similar capacity, below 4; 0 for the fastest class.
    pub capacity_class: u16,
    /// Bitmask of the words with CPUs of `core`.
    pub core_words: u32,
    /// Bitmask of the words with CPUs of `near`.
    pub near_words: u32,
    /// Bitmask of the words with CPUs of `node`.
    pub node_words: u32,
    /// Bitmask of the words with CPUs of the machine.
    pub all_words: u32,
    /// Bitmask of the LLCs of the CPU's node.
    pub node_llcs: u64,
    /// CPUs of the CPU's core, including the CPU itself.
    pub core: CpuWords,
    /// CPUs of the CPU's LLC.
    pub near: CpuWords,
    /// CPUs of the CPU's node.
    pub node: CpuWords,
}

impl Place {
    /// Sets the bitmasks of words. `all` contains the words with CPUs of the machine.
    #[must_use]
    pub fn with_word_masks(mut self, all: u32) -> Self {
        self.core_words = word_mask(&self.core);
        self.near_words = word_mask(&self.near);
        self.node_words = word_mask(&self.node);
        self.all_words = all;
        self
    }
}

/// `struct idle_scan_ctx`: CPU sets for the selection, aligned to cache lines.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleScanCtx {
    /// Idle CPUs.
    pub idle: CpuWords,
    /// CPUs of idle cores.
    pub cores: CpuWords,
    /// CPUs that the thread may run on.
    pub allowed: CpuWords,
    /// Preferred CPUs; without a seat, all allowed CPUs.
    pub preferred_cpus: CpuWords,
    /// CPUs that run borrowers.
    pub borrowers: CpuWords,
    /// Unused by the selection: idle CPUs that the scheduler has not examined yet.
    pub remaining: CpuWords,
    /// Unused by the selection: bitmask of the nodes from which the scheduler has not read the idle
    /// CPUs.
    pub unread_nodes: u64,
    /// Bitmask of the words that the selection examines.
    pub words: u32,
    /// Padding.
    pub unused: u32,
}

// The wrappers in `rules.c` keep no pointer, and write only through `*mut` pointers.
unsafe extern "C" {
    fn rules_choose_cpu(smt: bool, scan: *const IdleScanCtx, last: u32, here: *const Place) -> i32;
    fn rules_choose_best(smt: bool, scan: *const IdleScanCtx, last: u32, here: *const Place)
    -> i32;
    fn rules_choose_core(scan: *const IdleScanCtx, last: u32, here: *const Place) -> i32;
    fn rules_only_borrowers_run(
        core: *const CpuWords,
        words: u32,
        scan: *const IdleScanCtx,
    ) -> bool;
    fn rules_find_preferred(
        preferred_cpus: *mut CpuWords,
        allowed: *const CpuWords,
        seat: *const CpuWords,
    ) -> bool;
}

fn found(cpu: i32) -> Option<u32> {
    u32::try_from(cpu).ok()
}

/// Returns the CPU for a thread that last ran on the CPU `last`, which has the place `here`.
/// `None`: the thread has to wait.
pub fn choose_cpu(smt: bool, scan: &IdleScanCtx, last: u32, here: &Place) -> Option<u32> {
    // SAFETY: the arguments have the layouts of the header's structs, and are only read.
    found(unsafe { rules_choose_cpu(smt, scan, last, here) })
}

/// Returns the nearest preferred CPU of an idle core; without `smt`, the nearest preferred CPU that
/// is idle.
pub fn choose_best(smt: bool, scan: &IdleScanCtx, last: u32, here: &Place) -> Option<u32> {
    // SAFETY: the arguments have the layouts of the header's structs, and are only read.
    found(unsafe { rules_choose_best(smt, scan, last, here) })
}

/// Returns a CPU of an idle core: a preferred CPU, else an allowed CPU.
pub fn choose_core(scan: &IdleScanCtx, last: u32, here: &Place) -> Option<u32> {
    // SAFETY: the arguments have the layouts of the header's structs, and are only read.
    found(unsafe { rules_choose_core(scan, last, here) })
}

/// Returns whether each CPU of the core is idle or runs a borrower.
pub fn only_borrowers_run(core: &CpuWords, scan: &IdleScanCtx) -> bool {
    // SAFETY: the arguments have the layouts of the header's structs, and are only read.
    unsafe { rules_only_borrowers_run(core, word_mask(core), scan) }
}

/// Returns the preferred CPUs of a thread with this seat; `None`: the thread may run on no CPU of
/// the seat.
pub fn find_preferred(allowed: &CpuWords, seat: &CpuWords) -> Option<CpuWords> {
    let mut preferred_cpus = [0; CPU_WORDS];
    // SAFETY: the arguments have the layouts of the header's structs; the set that is written is a
    // local variable.
    let any = unsafe { rules_find_preferred(&mut preferred_cpus, allowed, seat) };
    any.then_some(preferred_cpus)
}
