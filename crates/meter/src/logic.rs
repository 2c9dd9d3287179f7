// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the BPF programs' arithmetic (`bpf/logic.h`), compiled for the host: counting of run
//! and wait times with racing visitors, epochs, vacancies and run-queue imbalances.

use proptest::prelude::*;

use crate::layout::{MapLayout, ProcessUse, RqScan};

/// `struct rq_scan` as 64-bit words.
type ScanWords = [u64; RqScan::BYTES / 8];
/// `struct load`: all, ordinary and background threads.
type Load = [u32; 3];

// These functions are defined in logic.c, which build.rs compiles.
#[link(name = "usher_meter_logic", kind = "static")]
unsafe extern "C" {
    fn logic_start_counting(counted: *mut [u64; 3], is_older: bool, run: u64, wait: u64) -> bool;
    fn logic_advance(counted: *mut u64, total: u64) -> u64;
    fn logic_advance_epoch(used: *mut [u64; 6], epoch: u64);
    fn logic_is_recent(before: u64, now: u64, recent: u64) -> bool;
    fn logic_note_vacancy(words: *mut ScanWords, vacant: u32, now: u64, is_wanted: bool) -> bool;
    fn logic_scan(
        words: *mut ScanWords,
        scans: *mut u32,
        loads: *const Load,
        cpus: u32,
        now: u64,
    ) -> bool;
    fn logic_saturating_sub(all: u32, some: u32) -> u32;
}

/// Visits a thread with `struct counted` and returns the increase of run and wait time.
fn visit(counted: &mut [u64; 3], is_older: bool, run: u64, wait: u64) -> [u64; 2] {
    // SAFETY: three 64-bit words have the layout of `struct counted`, and are borrowed exclusively.
    if unsafe { logic_start_counting(counted, is_older, run, wait) } {
        return [0; 2];
    }
    let [counted_run, counted_wait, _] = counted;
    // SAFETY: each call gets a pointer to one word, which is borrowed exclusively.
    unsafe {
        [
            logic_advance(counted_run, run),
            logic_advance(counted_wait, wait),
        ]
    }
}

fn advanced(mut used: [u64; 6], epoch: u64) -> ProcessUse {
    // SAFETY: six 64-bit words have the layout of `struct process_use`, and are borrowed
    // exclusively.
    unsafe { logic_advance_epoch(&mut used, epoch) };
    let bytes: Vec<u8> = used.iter().flat_map(|word| word.to_ne_bytes()).collect();
    ProcessUse::read(&bytes)
}

#[test]
fn past_use_of_an_older_thread_is_not_counted() {
    let mut counted = [0; 3];
    assert_eq!(visit(&mut counted, true, 100, 10), [0, 0]);
    assert_eq!(visit(&mut counted, true, 130, 10), [30, 0]);
    assert_eq!(visit(&mut [0; 3], false, 130, 10), [130, 10]);
}

#[test]
fn the_later_of_two_first_visitors_does_not_move_the_base() {
    // The state in which another CPU has set run_ns and wait_ns, but not yet `known`.
    let mut counted = [100, 10, 0];
    assert_eq!(visit(&mut counted, true, 120, 15), [0, 0]);
    assert_eq!(counted, [100, 10, 1]);
    assert_eq!(visit(&mut counted, true, 150, 15), [50, 5]);
}

#[test]
fn each_epoch_advances_once() {
    let used = [5, 3, 4, 0, 0, 0];
    let of = |epoch| {
        let now = advanced(used, epoch);
        (now.epoch, now.current, now.previous)
    };
    assert_eq!([of(5), of(6), of(7)], [(5, 3, 4), (6, 0, 3), (7, 0, 0)]);
}

const MS: u64 = 1_000_000;

fn state_of(words: &ScanWords) -> RqScan {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    RqScan::read(&bytes)
}

/// Simulates scans at intervals of 8 ms that find these numbers of vacant CPUs. Notification is
/// requested from scan `wanted_from` on. Returns the final state and the numbers of the scans that
/// notified.
fn vacancy(vacant: &[u32], wanted_from: usize) -> (RqScan, Vec<usize>) {
    let mut words = ScanWords::default();
    let mut reported = Vec::new();
    for (scan, vacant) in vacant.iter().enumerate() {
        let now = (scan as u64 + 1) * 8 * MS;
        // SAFETY: `words` has the layout of `struct rq_scan`, and is borrowed exclusively.
        let reports = unsafe { logic_note_vacancy(&mut words, *vacant, now, scan >= wanted_from) };
        reported.extend(reports.then_some(scan));
    }
    (state_of(&words), reported)
}

#[test]
fn a_vacancy_lasts_while_any_cpu_is_vacant() {
    let since = |vacant: &[u32]| {
        let (state, _) = vacancy(vacant, 0);
        (state.vacant_since_ns / (8 * MS), state.vacant_cpus)
    };
    assert_eq!(since(&[0, 3, 2, 4]), (2, 2));
    assert_eq!(since(&[1, 0, 4, 4]), (3, 4));
    assert_eq!(since(&[1, 2, 0]).0, 0);
}

#[test]
fn a_vacancy_notifies_once_when_requested() {
    let notified = |vacant: &[u32], wanted_from| vacancy(vacant, wanted_from).1;
    assert_eq!(notified(&[1; 9], 0), [2]);
    assert_eq!(notified(&[1; 9], 6), [6]);
    assert_eq!(notified(&[1, 1, 0, 1, 1, 1, 1], 0), [5]);
    assert_eq!(notified(&[1; 9], 100), [0; 0]);
}

/// Simulates scans of CPUs with these loads. Returns the numbers of the scans that reported an
/// imbalance.
fn reports(scans: &[&[Load]]) -> Vec<usize> {
    scan_all(scans).1
}

/// Simulates scans of CPUs with these loads, at intervals of 1 ms. Returns the final state and the
/// numbers of the scans that reported an imbalance.
fn scan_all(scans: &[&[Load]]) -> (RqScan, Vec<usize>) {
    let mut words = ScanWords::default();
    let mut imbalanced = [0; 8];
    let mut reported = Vec::new();
    for (scan, loads) in scans.iter().enumerate() {
        let cpus = loads.len() as u32;
        // SAFETY: `words` has the layout of `struct rq_scan`, and each array has one entry for each
        // of the `cpus` CPUs.
        let reports = unsafe {
            let imbalanced = imbalanced.as_mut_ptr();
            let now = (scan as u64 + 1) * MS;
            logic_scan(&mut words, imbalanced, loads.as_ptr(), cpus, now)
        };
        reported.extend(reports.then_some(scan));
    }
    let state = state_of(&words);
    assert_eq!(state.imbalances, reported.len() as u64);
    (state, reported)
}

#[test]
fn background_work_is_alone_until_two_scans_in_a_row_find_other_work() {
    let background_only_since = |scans: &[&[Load]]| scan_all(scans).0.background_only_since_ns / MS;
    let (alone, shared): (&[Load], &[Load]) = (&[BACK, IDLE], &[BACK, ONE]);
    assert_eq!(background_only_since(&[shared, alone, alone]), 2);
    assert_eq!(
        background_only_since(&[alone, shared, alone, shared, alone]),
        1
    );
    assert_eq!(background_only_since(&[alone, shared, shared]), 0);
    assert_eq!(background_only_since(&[alone, shared, shared, alone]), 4);
    assert_eq!(
        background_only_since(&[&[BACK, BOTH], &[BACK, REAL], alone]),
        3
    );
}

/// Possible loads of a CPU: idle, one background thread, one ordinary thread, two ordinary threads,
/// one background and one ordinary thread, one real-time thread.
const IDLE: Load = [0, 0, 0];
const BACK: Load = [1, 0, 1];
const ONE: Load = [1, 1, 0];
const TWO: Load = [2, 2, 0];
const BOTH: Load = [2, 1, 1];
const REAL: Load = [1, 0, 0];

#[test]
fn an_imbalance_needs_two_scans_with_background_work_and_no_idle_cpu() {
    assert_eq!(reports(&[&[TWO, BACK][..]; 2]), [1]);
    for (why, cpus) in [
        ("no thread waits", [ONE, BACK]),
        ("the waiting thread is background work", [BOTH, BACK]),
        ("no CPU runs background work", [TWO, ONE]),
        ("a real-time thread is not background work", [TWO, REAL]),
        ("the other CPU runs an ordinary thread too", [TWO, BOTH]),
        ("a CPU is idle", [TWO, IDLE]),
    ] {
        assert_eq!(reports(&[&cpus[..]; 40]), [0; 0], "{why}");
    }
    assert_eq!(reports(&[&[TWO, BACK, IDLE][..]; 40]), [0; 0]);
    // In these cases threads migrate: a different CPU is imbalanced in each scan, or balanced scans
    // are in between.
    let moving: [&[Load]; 4] = [
        &[TWO, ONE, BACK],
        &[ONE, TWO, BACK],
        &[TWO, ONE, BACK],
        &[ONE; 3],
    ];
    assert_eq!(reports(&moving), [0; 0]);
    let broken: [&[Load]; 4] = [&[TWO, BACK], &[TWO, ONE], &[TWO, BACK], &[TWO, IDLE]];
    assert_eq!(reports(&broken), [0; 0]);
}

#[test]
fn a_lasting_imbalance_is_reported_less_and_less_often() {
    let lasting: Vec<&[Load]> = vec![&[TWO, BACK]; 3100];
    let scans = [2, 32, 64, 128, 256, 512, 1024, 2048, 3072];
    assert_eq!(reports(&lasting), scans.map(|scan| scan - 1));
}

#[test]
fn counts_that_were_not_read_atomically_do_not_wrap() {
    // SAFETY: the function takes numbers and accesses no memory.
    let minus = |all, some| unsafe { logic_saturating_sub(all, some) };
    assert_eq!([minus(3, 1), minus(1, 1), minus(1, 3)], [2, 0, 0]);
}

#[test]
fn recent_use_tolerates_clock_differences_between_cpus() {
    // SAFETY: the function takes numbers and accesses no memory.
    let is_recent = |before, now| unsafe { logic_is_recent(before, now, 100) };
    assert!(is_recent(1000, 1099) && !is_recent(1000, 1100));
    assert!(is_recent(1000, 990), "the clock of the other CPU is ahead");
}

proptest! {
    #[test]
    fn visits_add_up_to_the_total(
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

    /// The recent use of an epoch is the same before and after the epoch advances.
    #[test]
    fn advancing_the_epoch_does_not_change_recent_use(
        epoch in 1..5u64,
        now in 0..100u64,
        before in 0..100u64,
        later in 0..4u64,
    ) {
        let used = [epoch, now, before, 0, 0, 0];
        let at = epoch + later;
        prop_assert_eq!(advanced(used, at).recent(at), advanced(used, epoch).recent(at));
    }
}
