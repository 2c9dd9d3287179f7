// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the arithmetic in `bpf/rules.h`, compiled for this machine.

use proptest::prelude::*;

use crate::layout::{Crowds, Layout, UserUse};

/// `struct crowds`, in long words.
type Seen = [u64; Crowds::BYTES / 8];
/// `struct load`: all threads, ordinary ones, background ones.
type Load = [u32; 3];

// Of rules.c, which build.rs compiles.
#[link(name = "usher_meter_rules", kind = "static")]
unsafe extern "C" {
    fn rules_is_new_here(counted: *mut [u64; 3], is_older: bool, run: u64, wait: u64) -> bool;
    fn rules_advance(counted: *mut u64, total: u64) -> u64;
    fn rules_turn_page(used: *mut [u64; 6], epoch: u64);
    fn rules_is_recent(before: u64, now: u64, recent: u64) -> bool;
    fn rules_note_vacancy(seen: *mut Seen, vacant: u32, now: u64, is_wanted: bool) -> bool;
    fn rules_look(
        seen: *mut Seen,
        looks: *mut u32,
        loads: *const Load,
        cpus: u32,
        now: u64,
    ) -> bool;
    fn rules_minus_or_none(all: u32, some: u32) -> u32;
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

const MS: u64 = 1_000_000;

fn crowds_of(seen: &Seen) -> Crowds {
    let bytes: Vec<u8> = seen.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Crowds::read(&bytes)
}

/// Looks that found so many CPUs vacant, 8 ms apart, somebody wanting to know from
/// the one of that number on: what is told in the end, and at which looks.
fn vacancy(vacant: &[u32], wanted_from: usize) -> (Crowds, Vec<usize>) {
    let mut seen = Seen::default();
    let mut told = Vec::new();
    for (look, vacant) in vacant.iter().enumerate() {
        let now = (look as u64 + 1) * 8 * MS;
        // SAFETY: these words are a `struct crowds`, and nobody else's.
        let tells = unsafe { rules_note_vacancy(&mut seen, *vacant, now, look >= wanted_from) };
        told.extend(tells.then_some(look));
    }
    (crowds_of(&seen), told)
}

#[test]
fn a_vacancy_lasts_as_long_as_any_cpu_is_idle() {
    let since = |vacant: &[u32]| {
        let (seen, _) = vacancy(vacant, 0);
        (seen.vacant_since_ns / (8 * MS), seen.vacant_cpus)
    };
    assert_eq!(since(&[0, 3, 2, 4]), (2, 2));
    assert_eq!(since(&[1, 0, 4, 4]), (3, 4));
    assert_eq!(since(&[1, 2, 0]).0, 0);
}

#[test]
fn a_vacancy_is_told_once_to_whoever_wants_to_know() {
    let told = |vacant: &[u32], wanted_from| vacancy(vacant, wanted_from).1;
    assert_eq!(told(&[1; 9], 0), [2]);
    assert_eq!(told(&[1; 9], 6), [6]);
    assert_eq!(told(&[1, 1, 0, 1, 1, 1, 1], 0), [5]);
    assert_eq!(told(&[1; 9], 100), [0; 0]);
}

/// Looks at CPUs: at which ones a crowd is told of.
fn crowds(looks: &[&[Load]]) -> Vec<usize> {
    seen_at(looks).1
}

/// Looks at CPUs, 1 ms apart: what is known in the end, and at which a crowd is told of.
fn seen_at(looks: &[&[Load]]) -> (Crowds, Vec<usize>) {
    let mut seen = Seen::default();
    let mut crowded = [0; 8];
    let mut told = Vec::new();
    for (look, loads) in looks.iter().enumerate() {
        let cpus = loads.len() as u32;
        // SAFETY: the words are a `struct crowds`, the rest as many words and loads
        // as there are CPUs.
        let tells = unsafe {
            let crowded = crowded.as_mut_ptr();
            let now = (look as u64 + 1) * MS;
            rules_look(&mut seen, crowded, loads.as_ptr(), cpus, now)
        };
        told.extend(tells.then_some(look));
    }
    let seen = crowds_of(&seen);
    assert_eq!(seen.found, told.len() as u64);
    (seen, told)
}

#[test]
fn background_work_is_alone_until_two_looks_in_a_row_find_somebody_else() {
    let alone_since = |looks: &[&[Load]]| seen_at(looks).0.alone_since_ns / MS;
    let (alone, shared): (&[Load], &[Load]) = (&[BACK, IDLE], &[BACK, ONE]);
    assert_eq!(alone_since(&[shared, alone, alone]), 2);
    assert_eq!(alone_since(&[alone, shared, alone, shared, alone]), 1);
    assert_eq!(alone_since(&[alone, shared, shared]), 0);
    assert_eq!(alone_since(&[alone, shared, shared, alone]), 4);
    assert_eq!(alone_since(&[&[BACK, BOTH], &[BACK, REAL], alone]), 3);
}

/// CPUs: idle, with a background thread, with an ordinary one, with two, with one
/// of each, with a real-time thread.
const IDLE: Load = [0, 0, 0];
const BACK: Load = [1, 0, 1];
const ONE: Load = [1, 1, 0];
const TWO: Load = [2, 2, 0];
const BOTH: Load = [2, 1, 1];
const REAL: Load = [1, 0, 0];

#[test]
fn a_crowd_is_two_looks_long_beside_background_work_and_no_idle_cpu() {
    assert_eq!(crowds(&[&[TWO, BACK][..]; 2]), [1]);
    for (why, cpus) in [
        ("nobody waits", [ONE, BACK]),
        ("what waits is background work", [BOTH, BACK]),
        ("no background work would make room", [TWO, ONE]),
        ("a real-time thread would not either", [TWO, REAL]),
        ("it would not leave by itself", [TWO, BOTH]),
        ("there is room", [TWO, IDLE]),
    ] {
        assert_eq!(crowds(&[&cpus[..]; 40]), [0; 0], "{why}");
    }
    assert_eq!(crowds(&[&[TWO, BACK, IDLE][..]; 40]), [0; 0]);
    // Another CPU at each look, or other looks between: threads that move.
    let moving: [&[Load]; 4] = [
        &[TWO, ONE, BACK],
        &[ONE, TWO, BACK],
        &[TWO, ONE, BACK],
        &[ONE; 3],
    ];
    assert_eq!(crowds(&moving), [0; 0]);
    let broken: [&[Load]; 4] = [&[TWO, BACK], &[TWO, ONE], &[TWO, BACK], &[TWO, IDLE]];
    assert_eq!(crowds(&broken), [0; 0]);
}

#[test]
fn a_crowd_that_lasts_is_told_of_ever_more_rarely() {
    let lasting: Vec<&[Load]> = vec![&[TWO, BACK]; 3100];
    let looks = [2, 32, 64, 128, 256, 512, 1024, 2048, 3072];
    assert_eq!(crowds(&lasting), looks.map(|look| look - 1));
}

#[test]
fn counts_that_were_not_read_at_once_do_not_wrap() {
    // SAFETY: takes numbers only.
    let minus = |all, some| unsafe { rules_minus_or_none(all, some) };
    assert_eq!([minus(3, 1), minus(1, 1), minus(1, 3)], [2, 0, 0]);
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
