// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `rules.c` gives: the headers' functions under names of their own.
//!
//! All of them are arithmetic over what they are given. They keep no pointer, write
//! nothing but what is `*mut` here, and take any number for any of their numbers.

use crate::balance::Load;
use crate::share::Pace;
use crate::when::{Moment, Passed, SPACES, Space};
use crate::where_to::{CpuWords, Outlook, Place};

pub(crate) const NEXT_SAME: u32 = 0;

unsafe extern "C" {
    pub(crate) fn rules_choose_cpu(
        smt: bool,
        sees: *const Outlook,
        last: u32,
        here: *const Place,
    ) -> i32;
    pub(crate) fn rules_choose_best(
        smt: bool,
        sees: *const Outlook,
        last: u32,
        here: *const Place,
    ) -> i32;
    pub(crate) fn rules_choose_core(sees: *const Outlook, last: u32, here: *const Place) -> i32;
    pub(crate) fn rules_is_left_to_guests(core: *const CpuWords, sees: *const Outlook) -> bool;
    pub(crate) fn rules_find_home(
        home: *mut CpuWords,
        allowed: *const CpuWords,
        seat: *const CpuWords,
    ) -> bool;

    pub(crate) fn rules_who_is_next(
        is: *mut Moment,
        spaces: *const [Space; SPACES],
        passed: *const Passed,
        queue: *mut u32,
    ) -> u32;
    pub(crate) safe fn rules_has_passed(taken: u64, first: u64) -> bool;
    pub(crate) fn rules_pass_by(passed: *mut Passed, at: u32, least: u64);
    pub(crate) fn rules_face(passed: *mut Passed, at: u32);
    pub(crate) fn rules_meet(passed: *mut Passed, at: u32, vtime: u64);
    pub(crate) fn rules_hindmost(spaces: *const [Space; SPACES], passed: *const Passed) -> u32;
    pub(crate) safe fn rules_sharers(mm: u64, seat: u64, version: u32, only: u32) -> u64;
    pub(crate) fn rules_space_of(spaces: *const [Space; SPACES], of: u64) -> u32;
    pub(crate) fn rules_join_space(space: *mut Space, of: u64, seat: u64, version: u32, vtime: u64);
    pub(crate) fn rules_is_seated(space: *const Space, version: u32) -> bool;
    pub(crate) fn rules_leave_space(space: *mut Space, vtime: u64);
    pub(crate) fn rules_first_of_seat(
        spaces: *const [Space; SPACES],
        seat: u64,
        least: *mut u64,
    ) -> bool;
    pub(crate) fn rules_place_at(
        spaces: *const [Space; SPACES],
        clock: u64,
        seat: u64,
        vtime: u64,
        ahead_ns: u64,
    ) -> u64;
    pub(crate) fn rules_average_of(spaces: *const [Space; SPACES], clock: u64) -> u64;

    pub(crate) fn rules_rest(pace: *mut Pace);
    pub(crate) fn rules_keep_pace(pace: *mut Pace, clock: u64, now_ns: u64);
    pub(crate) fn rules_at_pace(pace: *const Pace, clock: u64, vtime: u64) -> u64;

    pub(crate) fn rules_begins_look(now_ns: u64, look_at_ns: *mut u64) -> bool;
    pub(crate) fn rules_end_look(
        surplus: u32,
        now_ns: u64,
        here_at_ns: *mut u64,
        there_at_ns: *mut u64,
    );

    // Numbers alone.
    pub(crate) safe fn rules_within_group(percent: u32, weight: u32) -> u32;
    pub(crate) safe fn rules_weight_in(weight: u64, percent: u32) -> u64;
    pub(crate) safe fn rules_virtual_ns(ran_ns: u64, weight: u64) -> u64;
    pub(crate) safe fn rules_wake_at(vtime: u64, clock: u64, slice_ns: u64) -> u64;
    pub(crate) safe fn rules_is_urgent(burst_ns: u64, vtime: u64, share: u64) -> bool;
    pub(crate) safe fn rules_surplus_of(
        there: Load,
        here: Load,
        last_sleeps: bool,
        in_node: bool,
    ) -> u32;
    pub(crate) safe fn rules_other_llc(here: u32, llcs: u32, drawn: u32) -> u32;
    pub(crate) safe fn rules_is_late(served_ns: u64, now_ns: u64, lead_ns: u64) -> bool;
    pub(crate) safe fn rules_burst_after(average_ns: u64, burst_ns: u64) -> u64;
    pub(crate) safe fn rules_alone_at(vtime: u64, clock: u64) -> u64;
    pub(crate) safe fn rules_ahead_at_most(lead_ns: u64, slice_ns: u64, weight: u64) -> u64;
    pub(crate) safe fn rules_slot_of(value: u64) -> u32;
    pub(crate) safe fn rules_log2_of(value: u64) -> u32;

    pub(crate) safe fn levels_key_at(array: u64, level: u32, arrival: u64) -> u64;
    pub(crate) safe fn levels_key_expired(key: u64, active: u64, level: u32, arrival: u64) -> u64;
    pub(crate) safe fn levels_key_preempted(key: u64, active: u64) -> u64;
    pub(crate) safe fn levels_key_elsewhere(key: u64, there: u64, here: u64, arrival: u64) -> u64;
    pub(crate) safe fn levels_slice(nice_level: i32) -> u64;
    pub(crate) safe fn levels_level_of(nice_level: i32, sleep_average_ns: u64) -> u32;
    pub(crate) safe fn levels_is_interactive(nice_level: i32, sleep_average_ns: u64) -> bool;
    pub(crate) safe fn levels_after_sleep(average_ns: u64, slept_ns: u64, nice_level: i32) -> u64;
    pub(crate) safe fn levels_after_run(average_ns: u64, ran_ns: u64) -> u64;
    pub(crate) safe fn levels_of_child(average_ns: u64) -> u64;
    pub(crate) safe fn levels_is_starving(since_ns: u64, now_ns: u64, waiting: u32) -> bool;
    pub(crate) safe fn levels_has_better_level(
        key: u64,
        running: u64,
        same_space: bool,
        aggregate: bool,
    ) -> bool;
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::balance::{self, Surplus};
    use crate::where_to::{CPUS_MAX, LLCS_MAX};
    use crate::{latency, levels, share};

    const NUMBERS: [usize; 49] = [
        CPUS_MAX,
        LLCS_MAX,
        SPACES,
        share::WEIGHT_NORMAL as usize,
        share::SHORT_BURST_NS as usize,
        balance::LOOK_EVERY_NS as usize,
        Surplus::None as usize,
        Surplus::One as usize,
        Surplus::Many as usize,
        NEXT_SAME as usize,
        latency::SLOTS,
        levels::LEVEL as usize,
        size_of::<Place>(),
        offset_of!(Place, node_llcs),
        offset_of!(Place, core),
        offset_of!(Place, near),
        offset_of!(Place, node),
        size_of::<Outlook>(),
        offset_of!(Outlook, idle),
        offset_of!(Outlook, cores),
        offset_of!(Outlook, allowed),
        offset_of!(Outlook, home),
        offset_of!(Outlook, guests),
        size_of::<Space>(),
        offset_of!(Space, least),
        offset_of!(Space, seat),
        offset_of!(Space, waiting),
        offset_of!(Space, version),
        size_of::<Moment>(),
        offset_of!(Moment, turn_ns),
        offset_of!(Moment, lead_ns),
        offset_of!(Moment, now_ns),
        offset_of!(Moment, has_prev),
        offset_of!(Moment, aggregate),
        offset_of!(Moment, prev_vtime),
        offset_of!(Moment, own),
        offset_of!(Moment, not),
        offset_of!(Moment, passes),
        offset_of!(Moment, hindmost),
        offset_of!(Moment, hindmost_at),
        offset_of!(Moment, least),
        offset_of!(Moment, cpu),
        size_of::<Passed>(),
        offset_of!(Passed, least),
        size_of::<Pace>(),
        offset_of!(Pace, at_ns),
        size_of::<Load>(),
        offset_of!(Load, cpus),
        0,
    ];

    unsafe extern "C" {
        safe static rules_numbers: [u64; NUMBERS.len()];
    }

    #[test]
    fn what_is_passed_is_laid_out_as_in_the_headers() {
        assert_eq!(rules_numbers.map(|number| number as usize), NUMBERS);
    }
}
