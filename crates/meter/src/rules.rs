// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the arithmetic in `bpf/rules.h`, compiled for this machine.

use proptest::prelude::*;

use crate::layout::{Crowds, Layout, UserUse};

// Of rules.c, which build.rs compiles.
#[link(name = "usher_meter_rules", kind = "static")]
unsafe extern "C" {
    fn rules_is_new_here(counted: *mut [u64; 3], is_older: bool, run: u64, wait: u64) -> bool;
    fn rules_advance(counted: *mut u64, total: u64) -> u64;
    fn rules_turn_page(used: *mut [u64; 6], epoch: u64);
    fn rules_is_recent(before: u64, now: u64, recent: u64) -> bool;
    fn rules_note_vacancy(seen: *mut [u64; 4], idle: u32, now: u64);
    fn rules_less(all: u32, some: u32) -> u32;
}

/// `struct counted` of a thread, visited.
fn visit(counted: &mut [u64; 3], is_older: bool, run: u64, wait: u64) -> [u64; 2] {
    // SAFETY: three long words are a `struct counted`, and nobody else's.
    if unsafe { rules_is_new_here(counted, is_older, run, wait) } {
        return [0; 2];
    }
    let [counted_run, counted_wait, _] = counted;
    // SAFETY: words that are nobody else's.
    unsafe {
        [
            rules_advance(counted_run, run),
            rules_advance(counted_wait, wait),
        ]
    }
}

fn turned(mut used: [u64; 6], epoch: u64) -> UserUse {
    // SAFETY: six long words are a `struct user_use`, and nobody else's.
    unsafe { rules_turn_page(&mut used, epoch) };
    let bytes: Vec<u8> = used.iter().flat_map(|word| word.to_ne_bytes()).collect();
    UserUse::read(&bytes)
}

#[test]
fn an_older_threads_past_is_nobodys() {
    let mut counted = [0; 3];
    assert_eq!(visit(&mut counted, true, 100, 10), [0, 0]);
    assert_eq!(visit(&mut counted, true, 130, 10), [30, 0]);
    assert_eq!(visit(&mut [0; 3], false, 130, 10), [130, 10]);
}

#[test]
fn of_two_first_visitors_the_later_does_not_move_the_base() {
    // The other has set the base, and not called the thread known yet.
    let mut counted = [100, 10, 0];
    assert_eq!(visit(&mut counted, true, 120, 15), [0, 0]);
    assert_eq!(counted, [100, 10, 1]);
    assert_eq!(visit(&mut counted, true, 150, 15), [50, 5]);
}

#[test]
fn pages_turn_once_an_epoch() {
    let used = [5, 3, 4, 0, 0, 0];
    let of = |epoch| {
        let now = turned(used, epoch);
        (now.epoch, now.now, now.before)
    };
    assert_eq!([of(5), of(6), of(7)], [(5, 3, 4), (6, 0, 3), (7, 0, 0)]);
}

/// What is told after looks that found so many CPUs idle, a nanosecond apart.
fn vacancy(idle: &[u32]) -> Crowds {
    let mut seen = [0; 4];
    for (idle, now) in idle.iter().zip(1..) {
        // SAFETY: four long words are a `struct crowds`, and nobody else's.
        unsafe { rules_note_vacancy(&raw mut seen, *idle, now) };
    }
    let bytes: Vec<u8> = seen.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Crowds::read(&bytes)
}

#[test]
fn a_vacancy_lasts_as_long_as_any_cpu_is_idle() {
    let told = |idle: &[u32]| {
        let seen = vacancy(idle);
        (seen.vacant_since_ns, seen.vacant_cpus)
    };
    assert_eq!(told(&[0, 3, 2, 4]), (2, 2));
    assert_eq!(told(&[1, 0, 4, 4]), (3, 4));
    assert_eq!(told(&[1, 2, 0]).0, 0);
}

#[test]
fn counts_that_were_not_read_at_once_do_not_wrap() {
    // SAFETY: takes numbers only.
    let less = |all, some| unsafe { rules_less(all, some) };
    assert_eq!([less(3, 1), less(1, 1), less(1, 3)], [2, 0, 0]);
}

#[test]
fn clocks_of_two_cpus_may_differ() {
    // SAFETY: takes numbers only.
    let is_recent = |before, now| unsafe { rules_is_recent(before, now, 100) };
    assert!(is_recent(1000, 1099) && !is_recent(1000, 1100));
    assert!(is_recent(1000, 990), "the other's clock was read later");
}

proptest! {
    #[test]
    fn visits_add_up_to_what_has_come(
        is_older: bool,
        base in 0..1000u64,
        steps in prop::collection::vec(0..1000u64, 1..20),
    ) {
        let mut counted = [0; 3];
        let (mut total, mut sum) = (base, 0);
        for step in &steps {
            sum += visit(&mut counted, is_older, total, 0)[0];
            total += step;
        }
        sum += visit(&mut counted, is_older, total, 0)[0];
        prop_assert_eq!(sum, if is_older { total - base } else { total });
    }

    /// What is told of an epoch is the same whether its page has turned or not.
    #[test]
    fn turning_a_page_does_not_change_what_is_recent(
        epoch in 1..5u64,
        now in 0..100u64,
        before in 0..100u64,
        later in 0..4u64,
    ) {
        let used = [epoch, now, before, 0, 0, 0];
        let at = epoch + later;
        prop_assert_eq!(turned(used, at).recent(at), turned(used, epoch).recent(at));
    }
}
