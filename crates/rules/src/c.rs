// SPDX-License-Identifier: MIT OR Apache-2.0
//! Declarations of the functions in `rules.c` that take and return numbers only, and a test that
//! the layouts of all shared structs are those of the headers.
//!
//! `rules.c` wraps the inline functions of the headers, so that Rust can call them. A function that
//! takes a struct or a pointer is declared in the file of the Rust type instead. The functions
//! below only compute from their arguments, and accept any number.

unsafe extern "C" {
    pub(crate) safe fn rules_has_unrunnable_head(taken: u64, first: u64) -> bool;
    pub(crate) safe fn rules_queue_key(mm: u64, seat: u64, version: u32, pinned_cpu: u32) -> u64;
    pub(crate) safe fn rules_weight_in(weight: u64, factor: u32) -> u64;
    pub(crate) safe fn rules_virtual_ns(ran_ns: u64, weight: u64) -> u64;
    pub(crate) safe fn rules_clamp_sleeper(vtime: u64, clock: u64, slice_ns: u64) -> u64;
    pub(crate) safe fn rules_is_urgent(burst_ns: u64, vtime: u64, share: u64) -> bool;
    pub(crate) safe fn rules_other_llc(here: u32, llcs: u32, drawn: u32) -> u32;
    pub(crate) safe fn rules_is_overdue(served_ns: u64, now_ns: u64, max_lag_ns: u64) -> bool;
    pub(crate) safe fn rules_burst_after(average_ns: u64, burst_ns: u64) -> u64;
    pub(crate) safe fn rules_clamp_to_clock(vtime: u64, clock: u64) -> u64;
    pub(crate) safe fn rules_max_lag(max_lag_ns: u64, slice_ns: u64, weight: u64) -> u64;
    pub(crate) safe fn rules_slot_of(value: u64) -> u32;
    pub(crate) safe fn rules_is_young(ran_ns: u64) -> bool;
    pub(crate) safe fn rules_family_charge(family_vtime: u64, clock: u64, ran: u64) -> u64;
    pub(crate) safe fn rules_log2_of(value: u64) -> u32;
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use crate::balance::{self, Load, Surplus};
    use crate::run_queue::{HeadSkip, MM_QUEUES_PER_LLC, MmQueue, NEXT_SAME, PickCtx};
    use crate::select_cpu::{CPUS_MAX, IdleScanCtx, LLCS_MAX, Place};
    use crate::share::Aging;
    use crate::{latency, share};

    const NUMBERS: [usize; 54] = [
        CPUS_MAX,
        LLCS_MAX,
        MM_QUEUES_PER_LLC,
        share::WEIGHT_NORMAL as usize,
        share::SHORT_BURST_NS as usize,
        balance::BALANCE_PERIOD_NS as usize,
        Surplus::None as usize,
        Surplus::One as usize,
        Surplus::Many as usize,
        NEXT_SAME as usize,
        latency::SLOTS,
        size_of::<Place>(),
        offset_of!(Place, core_words),
        offset_of!(Place, near_words),
        offset_of!(Place, node_words),
        offset_of!(Place, all_words),
        offset_of!(Place, node_llcs),
        offset_of!(Place, core),
        offset_of!(Place, near),
        offset_of!(Place, node),
        size_of::<IdleScanCtx>(),
        offset_of!(IdleScanCtx, idle),
        offset_of!(IdleScanCtx, cores),
        offset_of!(IdleScanCtx, allowed),
        offset_of!(IdleScanCtx, preferred_cpus),
        offset_of!(IdleScanCtx, borrowers),
        offset_of!(IdleScanCtx, words),
        size_of::<MmQueue>(),
        offset_of!(MmQueue, min_vtime),
        offset_of!(MmQueue, seat),
        offset_of!(MmQueue, waiting),
        offset_of!(MmQueue, version),
        size_of::<PickCtx>(),
        offset_of!(PickCtx, turn_ns),
        offset_of!(PickCtx, max_lag_ns),
        offset_of!(PickCtx, now_ns),
        offset_of!(PickCtx, has_prev),
        offset_of!(PickCtx, aggregate),
        offset_of!(PickCtx, prev_vtime),
        offset_of!(PickCtx, own),
        offset_of!(PickCtx, excluded),
        offset_of!(PickCtx, skipped),
        offset_of!(PickCtx, min_vtime_queue),
        offset_of!(PickCtx, min_vtime),
        offset_of!(PickCtx, min_vtime_with_prev),
        offset_of!(PickCtx, cpu),
        size_of::<HeadSkip>(),
        offset_of!(HeadSkip, min_vtime),
        size_of::<Aging>(),
        offset_of!(Aging, began_ns),
        share::OVERDUE_NS as usize,
        size_of::<Load>(),
        offset_of!(Load, cpus),
        0,
    ];

    unsafe extern "C" {
        safe static rules_numbers: [u64; NUMBERS.len()];
    }

    #[test]
    fn layouts_and_constants_match_the_headers() {
        assert_eq!(rules_numbers.map(|number| number as usize), NUMBERS);
    }
}
