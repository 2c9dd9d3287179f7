// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the array, the slice and the level of a thread against values that were computed by
//! hand.

use crate::c::{self, CpuState, ThreadState};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Calls `place` for a thread of nice value 0 on CPU 3, at the time `at_ms` in milliseconds.
fn place(thread: &mut ThreadState, cpu: &mut CpuState, at_ms: u64) {
    // SAFETY: `thread` and `cpu` are exclusive references, which are valid pointers.
    unsafe { c::o1_place(thread, cpu, 3, 120, at_ms * MS) };
}

#[test]
fn new_thread_gets_a_slice_in_the_active_array() {
    let mut cpu = CpuState {
        active: 1,
        arrivals: 7,
        ..CpuState::default()
    };
    let mut thread = ThreadState {
        sleep_average_ns: 500 * MS,
        ..ThreadState::default()
    };
    place(&mut thread, &mut cpu, 1);
    let place = (thread.array, thread.level, thread.arrival);
    assert_eq!(place, (1, 120, 7));
    assert_eq!((thread.slice_left_ns, cpu.arrivals), (100 * MS, 8));
}

/// Returns a thread in the active array (array 0) of CPU 3 that has `left_ms` of its slice left.
fn started(cpu: &mut CpuState, sleep_average_ms: u64, left_ms: u64) -> ThreadState {
    let mut thread = ThreadState {
        sleep_average_ns: sleep_average_ms * MS,
        ..ThreadState::default()
    };
    place(&mut thread, cpu, 1);
    thread.slice_left_ns = left_ms * MS;
    thread
}

#[test]
fn thread_without_slice_expires_unless_it_is_interactive() {
    for (sleep_average_ms, array) in [(0, 1), (600, 1), (700, 0)] {
        let mut cpu = CpuState::default();
        let mut thread = started(&mut cpu, sleep_average_ms, 0);
        place(&mut thread, &mut cpu, 200);
        assert_eq!(thread.array, array, "{sleep_average_ms} ms");
        assert_eq!((thread.arrival, thread.slice_left_ns), (1, 100 * MS));
        assert_eq!(cpu.expired_since_ns, 200 * MS);
    }
}

#[test]
fn interactive_thread_expires_if_expired_threads_starve() {
    let mut cpu = CpuState {
        waiting: 2,
        ..CpuState::default()
    };
    for (at_ms, array) in [(100, 0), (3_100, 0), (3_101, 1)] {
        let mut thread = started(&mut cpu, 1_000, 0);
        place(&mut thread, &mut cpu, at_ms);
        assert_eq!(thread.array, array, "at {at_ms} ms");
    }
}

#[test]
fn preempted_thread_keeps_its_place_on_its_cpu() {
    let mut cpu = CpuState::default();
    let mut thread = started(&mut cpu, 0, 40);
    cpu.arrivals = 9;
    place(&mut thread, &mut cpu, 200);
    assert_eq!((thread.arrival, thread.slice_left_ns), (0, 40 * MS));
    // SAFETY: the arguments are exclusive references, which are valid pointers.
    unsafe { c::o1_place(&mut thread, &mut cpu, 4, 120, 200 * MS) };
    assert_eq!((thread.arrival, thread.array), (9, 0), "on another CPU");
}

#[test]
fn sleeper_keeps_the_rest_of_its_slice_and_gains_levels() {
    let mut cpu = CpuState::default();
    let mut thread = started(&mut cpu, 0, 40);
    assert_eq!(thread.level, 125);
    thread.slept_at_ns = 100 * MS;
    place(&mut thread, &mut cpu, 400);
    let place = (thread.level, thread.slice_left_ns, thread.slept_at_ns);
    assert_eq!(place, (122, 40 * MS, 0));
    assert_eq!(thread.arrival, 1);
}

#[test]
fn cpu_time_lowers_the_sleep_average_once() {
    let mut thread = ThreadState {
        sleep_average_ns: 500 * MS,
        ran_since_ns: SECOND,
        slice_ends_ns: SECOND + 150 * MS,
        ..ThreadState::default()
    };
    for _ in 0..2 {
        // SAFETY: the argument is an exclusive reference, which is a valid pointer.
        unsafe { c::o1_account_run(&mut thread, SECOND + 100 * MS) };
        assert_eq!(thread.sleep_average_ns, 480 * MS);
    }
    // SAFETY: the argument is a reference, which is a valid pointer.
    let left = |ms| unsafe { c::o1_left_of_slice(&thread, SECOND + ms * MS) };
    assert_eq!([left(100), left(150), left(151)], [50 * MS, 0, 0]);
}

#[test]
fn slices_are_by_nice_value() {
    let slice = |nice: i32| c::o1_slice(120 + nice) / MS;
    assert_eq!(
        [-20, -1, 0, 10, 19].map(slice),
        [800, 420, 100, 50, 5],
        "ms"
    );
    assert_eq!([slice(-50), slice(50)], [800, 5], "no nice values");
}

#[test]
fn sleep_shifts_level_by_at_most_five() {
    let level = |nice: i32, sleep_ms: u64| c::o1_level_of(120 + nice, sleep_ms * MS);
    assert_eq!(
        [0, 99, 100, 500, 1000, 9000].map(|sleep_ms| level(0, sleep_ms)),
        [125, 125, 124, 120, 115, 115]
    );
    assert_eq!([level(19, 0), level(-20, 1000)], [139, 100]);
}

#[test]
fn higher_nice_value_needs_more_sleep_to_be_interactive() {
    let interactive = |nice, sleep_ns| c::o1_is_interactive(120 + nice, sleep_ns);
    let least = |nice: i32| (0..=10).find(|tenth| interactive(nice, tenth * 100 * MS));
    assert_eq!(
        [-20, -10, 0, 5, 19].map(least),
        [Some(2), Some(4), Some(7), Some(8), None]
    );
}

#[test]
fn sleep_average_is_capped_at_a_second() {
    let slept = |average, ms| c::o1_after_sleep(average * MS, ms * MS, 120) / MS;
    assert_eq!(
        [slept(100, 50), slept(990, 50), slept(900, 5000)],
        [150, 1000, 1000]
    );
    assert_eq!(slept(0, 5000), 799, "just interactive");
    let ran = |average, ms| c::o1_after_run(average * MS, ms * MS) / MS;
    assert_eq!([ran(1000, 100), ran(500, 100)], [990, 480]);
    assert_eq!([ran(50, 10), ran(50, 100), ran(0, 5000)], [40, 0, 0]);
    assert_eq!(c::o1_of_child(SECOND), 950 * MS);
}

#[test]
fn expired_threads_starve_after_a_second_per_waiter_up_to_ten() {
    let starving = |waiting, now| c::o1_is_starving(SECOND, now, waiting);
    assert_eq!(
        [starving(3, 4 * SECOND), starving(3, 4 * SECOND + 1)],
        [false, true]
    );
    assert_eq!(
        [starving(400, 11 * SECOND), starving(400, 11 * SECOND + 1)],
        [false, true]
    );
}
