// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of soft seats, on the host build of the scheduler: on the CPUs of their program's seat,
//! threads run before borrowers. A borrower is a thread on a CPU outside its program's seat.

mod common;

use common::rig::{Rig, Shape, State, WHY_RETURNED, set};
use common::{MS, SETTINGS};
use proptest::prelude::*;
use usher_rules::sched::{HostVariant, Task};
use usher_rules::select_cpu::CpuWords;

/// Cgroups of two programs.
const A: u64 = 11;
const B: u64 = 12;

/// Adds a thread of a cgroup that may run on all CPUs and last ran on `cpu`.
fn add(rig: &mut Rig, cgroup: u64, cpu: usize) -> usize {
    let cpus = set(rig.all());
    add_on(rig, cgroup, cpu, cpus)
}

fn add_on(rig: &mut Rig, cgroup: u64, cpu: usize, cpus: CpuWords) -> usize {
    rig.create(Task {
        mm: cgroup << 12,
        cgroup,
        cpu: cpu as u32,
        ran_ns: 1,
        cpus,
        ..Task::default()
    })
}

fn start(rig: &mut Rig, cgroup: u64, cpu: usize) -> usize {
    let thread = add(rig, cgroup, cpu);
    rig.wake(thread);
    thread
}

/// Returns a machine on which program A has the first half of the CPUs as its seat, and program B
/// the second half.
fn halves(shape: Shape) -> Rig {
    let mut rig = Rig::new(shape);
    let cpus = shape.cpus();
    rig.sched.set_seat(A, &set(0..cpus / 2));
    rig.sched.set_seat(B, &set(cpus / 2..cpus));
    rig
}

fn cpu_of(rig: &Rig, thread: usize) -> Option<usize> {
    match rig.state(thread) {
        State::On(cpu) => Some(cpu),
        _ => None,
    }
}

#[test]
fn threads_run_in_their_seat_first() {
    for shape in [Shape(1, 1, 4, 1), Shape(1, 2, 2, 1), Shape(2, 1, 40, 1)] {
        let mut rig = halves(shape);
        let half = shape.cpus() / 2;
        // The last CPU of the threads is in either seat.
        for last in [0, half, 2 * half - 1] {
            let [a, b] = [A, B].map(|cgroup| start(&mut rig, cgroup, last));
            assert!(cpu_of(&rig, a).is_some_and(|cpu| cpu < half));
            assert!(cpu_of(&rig, b).is_some_and(|cpu| cpu >= half));
            rig.stop(a);
            rig.stop(b);
        }
        assert_eq!(rig.tally().borrowed, 0);
    }
}

#[test]
fn borrower_runs_on_idle_cpus_until_their_owner_wakes() {
    for shape in [Shape(1, 1, 4, 1), Shape(1, 2, 2, 1), Shape(2, 1, 2, 1)] {
        let mut rig = halves(shape);
        let of_a: Vec<usize> = (0..3).map(|_| start(&mut rig, A, 0)).collect();
        let borrower = *of_a.last().unwrap_or(&0);
        let on = cpu_of(&rig, borrower);
        assert_eq!(on, Some(2), "{shape:?}");
        assert_eq!(rig.tally().borrowed, 1);
        // A thread of the seat's owner prefers the idle CPU of its seat to the CPU of the borrower.
        let first = start(&mut rig, B, 3);
        assert_eq!(cpu_of(&rig, first), Some(3));
        assert_eq!(cpu_of(&rig, borrower), Some(2));
        let owner = start(&mut rig, B, 3);
        assert_eq!(cpu_of(&rig, owner), Some(2), "{shape:?}");
        assert_eq!(rig.state(borrower), State::Waiting);
        assert_eq!(rig.task(owner).why, WHY_RETURNED);
        assert_eq!(rig.tally().returned, 1);
        // The preempted borrower runs next on a CPU of its own seat, unless another CPU becomes
        // idle earlier.
        rig.pass(20 * SETTINGS.slice_ns);
        assert!(cpu_of(&rig, borrower).is_none_or(|cpu| cpu < 2));
        assert!(rig.ran_ns(borrower) > 0);
        rig.stop(owner);
        rig.pass(20 * SETTINGS.slice_ns);
        let running = rig.running.iter().flatten().count();
        assert_eq!(running, 4, "{shape:?}: no CPU idles beside borrowers");
    }
}

/// A pinned thread preempts a borrower on its only CPU, if this CPU is in its seat.
#[test]
fn pinned_thread_reclaims_its_cpu() {
    for (cgroup, reclaims) in [(B, true), (A, false), (0, true)] {
        let mut rig = halves(Shape(1, 1, 4, 1));
        let of_a: Vec<usize> = (0..4).map(|_| start(&mut rig, A, 0)).collect();
        assert_eq!(cpu_of(&rig, of_a[3]), Some(3));
        rig.pass(MS / 2);
        let pinned = add_on(&mut rig, cgroup, 3, set([3]));
        rig.wake(pinned);
        // A thread that may run on no CPU of its seat prefers all CPUs.
        if cgroup == A {
            assert!(cpu_of(&rig, pinned).is_none() || rig.tally().returned > 0);
            continue;
        }
        assert_eq!(cpu_of(&rig, pinned) == Some(3), reclaims, "{cgroup}");
        assert_eq!(rig.tally().returned, u64::from(reclaims));
        // On a CPU that runs a thread in its own seat, another pinned thread waits.
        let other = add_on(&mut rig, cgroup, 3, set([3]));
        rig.wake(other);
        assert_eq!(rig.state(other), State::Waiting);
        assert_eq!(rig.tally().returned, u64::from(reclaims));
    }
}

/// Only a thread that wakes preempts a borrower. A thread that is forked on its only CPU waits for
/// the end of the borrower's slice.
#[test]
fn forked_pinned_thread_does_not_preempt_a_borrower() {
    let mut rig = halves(Shape(1, 1, 4, 1));
    let of_a: Vec<usize> = (0..4).map(|_| start(&mut rig, A, 0)).collect();
    assert_eq!(cpu_of(&rig, of_a[3]), Some(3));
    rig.pass(MS / 2);
    let pinned = add_on(&mut rig, B, 3, set([3]));
    rig.wake_new(pinned);
    assert_eq!(rig.state(pinned), State::Waiting);
    assert_eq!(rig.tally().returned, 0);
    rig.pass(SETTINGS.slice_ns);
    assert_eq!(rig.state(pinned), State::On(3));
}

/// With all CPUs busy, threads wait for CPUs of their seats only.
#[test]
fn waiting_threads_run_in_their_seat() {
    for shape in [Shape(1, 1, 4, 1), Shape(1, 2, 2, 1), Shape(1, 4, 1, 1)] {
        let mut rig = halves(shape);
        let threads: Vec<(usize, u64)> = (0..16)
            .map(|number| {
                let cgroup = if number % 4 == 0 { A } else { B };
                (start(&mut rig, cgroup, number % 4), cgroup)
            })
            .collect();
        rig.pass(500 * MS);
        rig.began.clear();
        let before: Vec<u64> = threads.iter().map(|&(t, _)| rig.ran_ns(t)).collect();
        rig.pass(3_000 * MS);
        for &(thread, cpu) in &rig.began {
            let is_in_seat = (cpu < 2) == (threads[thread].1 == A);
            assert!(is_in_seat, "{shape:?}: {thread} on CPU {cpu}");
        }
        // Four threads share the seat of A, twelve that of B.
        for (&(thread, cgroup), before) in threads.iter().zip(before) {
            let due = if cgroup == A { 1_500 * MS } else { 500 * MS };
            let ran = rig.ran_ns(thread) - before;
            assert!(
                (due * 7 / 10..due * 13 / 10).contains(&ran),
                "{shape:?}: {ran} of {due}"
            );
        }
    }
}

/// An owner that sleeps leaves its CPU to borrowers, which wait in the same LLC or in another LLC.
#[test]
fn waiting_borrowers_take_cpus_that_become_idle() {
    for shape in [Shape(1, 1, 4, 1), Shape(1, 2, 2, 1), Shape(2, 2, 1, 1)] {
        let mut rig = halves(shape);
        let owners = [2, 3].map(|cpu| start(&mut rig, B, cpu));
        let of_a: Vec<usize> = (0..6).map(|_| start(&mut rig, A, 0)).collect();
        rig.pass(100 * MS);
        assert_eq!(
            owners.map(|thread| cpu_of(&rig, thread).is_some()),
            [true; 2]
        );
        rig.stop(owners[0]);
        let running = rig.running.iter().flatten().count();
        assert_eq!(running, 4, "{shape:?}");
        rig.pass(60 * MS);
        assert_eq!(rig.running.iter().flatten().count(), 4);
        rig.wake(owners[0]);
        assert!(
            cpu_of(&rig, owners[0]).is_some_and(|cpu| cpu >= 2),
            "{shape:?}"
        );
        assert!(of_a.iter().all(|&thread| rig.ran_ns(thread) > 0));
    }
}

/// A borrower does not share a core with a thread that runs in its own seat, but shares a core with
/// other borrowers.
#[test]
fn borrowers_share_cores_with_borrowers_only() {
    let mut rig = halves(Shape(1, 1, 4, 2));
    let owner = start(&mut rig, B, 4);
    assert_eq!(cpu_of(&rig, owner), Some(4));
    // Threads of A run on the four CPUs of their seat, and as borrowers on the core of CPUs 6 and
    // 7.
    let of_a: Vec<usize> = (0..8).map(|_| start(&mut rig, A, 0)).collect();
    rig.pass(10 * MS);
    assert!(rig.is_idle(5), "beside the owner");
    let waiting = of_a
        .iter()
        .filter(|&&thread| cpu_of(&rig, thread).is_none());
    assert_eq!(waiting.count(), 2, "six CPUs run borrowers or owners");
    rig.pass(100 * MS);
    assert!(rig.is_idle(5), "beside the owner");
    assert_eq!(cpu_of(&rig, owner), Some(4));
    // A second thread of the owner takes the CPU of a borrower, not the idle CPU beside the first.
    let second = start(&mut rig, B, 5);
    let on_borrowers_core = cpu_of(&rig, second).is_some_and(|cpu| cpu >= 6);
    assert!(
        on_borrowers_core,
        "the CPU of a borrower comes before a shared core"
    );
    rig.stop(second);
    let beside = add_on(&mut rig, B, 5, set([5]));
    rig.wake(beside);
    assert_eq!(cpu_of(&rig, beside), Some(5));
    rig.stop(beside);
    assert!(rig.is_idle(5), "threads of A wait");
    rig.stop(owner);
    assert_eq!(rig.running.iter().flatten().count(), 8);
    // The owner wakes. The borrower on the SMT sibling may continue for the rest of its slice.
    rig.wake(owner);
    assert!(cpu_of(&rig, owner).is_some_and(|cpu| cpu >= 4));
}

/// A borrower that wakes runs at once if a CPU beside another borrower is idle. An idle CPU beside
/// a thread in its own seat stays idle.
#[test]
fn woken_borrower_takes_an_idle_cpu_beside_a_borrower() {
    for (cores, owned) in [(3, vec![]), (4, vec![4]), (7, vec![4, 6, 8, 10])] {
        let mut rig = Rig::new(Shape(1, 1, cores, 2));
        rig.sched.set_seat(A, &set([0, 1]));
        for &cpu in &owned {
            rig.start(1, [cpu]);
        }
        let free = 2 * cores - 2 * owned.len();
        let last = rig.shape.cpus() - 1;
        for number in 0..free {
            let thread = start(&mut rig, A, if number % 2 == 0 { 0 } else { last });
            assert!(
                cpu_of(&rig, thread).is_some(),
                "{number} of {free} on {cores} cores"
            );
        }
        assert_eq!(rig.tally().borrowed, free as u64 - 2);
        start(&mut rig, A, 0);
        for &cpu in &owned {
            assert!(rig.is_idle(cpu + 1));
        }
    }
}

/// When the mask of a waiting thread gains a CPU of its seat, the thread preempts a borrower on
/// that CPU.
#[test]
fn waiting_owner_reclaims_a_cpu_that_its_mask_gains() {
    let mut rig = halves(Shape(1, 1, 4, 1));
    let owner = add_on(&mut rig, B, 2, set([2]));
    rig.wake(owner);
    let of_a: Vec<usize> = (0..3).map(|_| start(&mut rig, A, 0)).collect();
    assert_eq!(cpu_of(&rig, of_a[2]), Some(3));
    let waiter = add_on(&mut rig, B, 2, set([2]));
    rig.wake(waiter);
    rig.pass(MS / 10);
    let waiter = if cpu_of(&rig, waiter).is_none() {
        waiter
    } else {
        owner
    };
    assert_eq!(rig.state(waiter), State::Waiting);
    let all = set(rig.all());
    rig.threads[waiter].cpus = all;
    rig.sched.set_cpus(rig.threads[waiter].id, &all);
    rig.settle();
    assert_eq!(cpu_of(&rig, waiter), Some(3));
    assert_eq!(rig.state(of_a[2]), State::Waiting);
}

/// A pinned thread waits in the LLC of its CPU, even if the thread enqueued before it has a seat in
/// another LLC.
#[test]
fn pinned_thread_waits_in_the_llc_of_its_cpu() {
    for cpu in [0, 1, 2, 3] {
        let mut rig = halves(Shape(1, 2, 2, 1));
        for cpu in rig.all() {
            rig.start(1, [cpu]);
        }
        for cgroup in [A, B, A] {
            let other = add(&mut rig, cgroup, cpu);
            rig.wake_by(other, 0);
            let thread = rig.add(2, [cpu]);
            rig.wake_by(thread, 0);
            let llc = rig.shape.llc_of(cpu);
            let counts = [0, 1].map(|llc| rig.sched.llc(llc).waiting + rig.sched.llc(llc).urgent);
            rig.stop(thread);
            let without = [0, 1].map(|llc| rig.sched.llc(llc).waiting + rig.sched.llc(llc).urgent);
            assert!(counts[llc] >= without[llc], "{counts:?} {without:?}");
            assert_eq!(counts[1 - llc], without[1 - llc], "CPU {cpu}");
            rig.stop(other);
        }
    }
}

/// When a change of the seats takes the CPU of a running thread out of its seat, the thread becomes
/// a borrower at the next tick.
#[test]
fn running_thread_follows_a_change_of_seats() {
    for (moves_away, is_preempted) in [(true, true), (false, false)] {
        let mut rig = halves(Shape(1, 1, 2, 1));
        let thread = start(&mut rig, A, 0);
        assert_eq!(cpu_of(&rig, thread), Some(0));
        let other = start(&mut rig, B, 1);
        if moves_away {
            rig.sched.set_seat(A, &set([1]));
            rig.sched.set_seat(B, &set([0]));
        } else {
            rig.sched.set_seat(A, &set([0]));
        }
        rig.tick(0);
        rig.tick(1);
        rig.pass(MS);
        let pinned = add_on(&mut rig, B, 0, set([0]));
        let before = rig.tally().returned;
        rig.wake(pinned);
        assert!(!is_preempted || rig.state(pinned) == State::On(0));
        // The preempted thread of A then reclaims the CPU of its new seat.
        let returned = rig.tally().returned - before;
        assert_eq!(returned, if is_preempted { 2 } else { 0 });
        assert!(rig.ran_ns(other) > 0);
    }
}

/// A machine on which program A has a seat, with threads on random CPUs.
struct Case {
    rig: Rig,
    seat: u64,
    /// Threads of program B outside their seat, with their CPUs.
    borrowing: Vec<(usize, usize)>,
}

fn is_in(bits: u64, cpu: usize) -> bool {
    bits >> cpu & 1 == 1
}

impl Case {
    /// Starts pinned threads without a seat on the CPUs in `owners`, and borrowers on the CPUs in
    /// `borrowers`. Returns `None` if a borrower does not run on its intended CPU.
    fn new(rig: Rig, seat: u64, owners: u64, borrowers: u64) -> Option<Self> {
        let borrowing = Vec::new();
        let mut case = Self {
            rig,
            seat,
            borrowing,
        };
        let all = case.rig.all();
        let seat = set(all.clone().filter(|&cpu| is_in(case.seat, cpu)));
        case.rig.sched.set_seat(A, &seat);
        for cpu in all.clone() {
            if is_in(owners, cpu) {
                case.rig.start(1, [cpu]);
            } else if is_in(borrowers, cpu) {
                case.borrow(cpu)?;
            }
        }
        // An idle core may have pulled a borrower back to its seat.
        let is_there = |&(thread, cpu): &(usize, usize)| case.rig.state(thread) == State::On(cpu);
        case.borrowing.iter().all(is_there).then_some(case)
    }

    /// Lets a thread of program B run as a borrower on a CPU, by keeping the CPU of its seat busy
    /// until it runs.
    fn borrow(&mut self, cpu: usize) -> Option<()> {
        let rig = &mut self.rig;
        let Some(home) = rig.all().find(|&home| home != cpu && rig.is_idle(home)) else {
            return Some(());
        };
        rig.sched.set_seat(B, &set([home]));
        let thread = add_on(rig, B, cpu, set([cpu, home]));
        let busy = rig.start(1, [home]);
        rig.wake(thread);
        let has_started = rig.state(thread) == State::On(cpu);
        rig.stop(busy);
        self.borrowing.push((thread, cpu));
        has_started.then_some(())
    }

    /// Returns the kind of a CPU for a waking thread of program A; 0 is the best kind. `None`: the
    /// thread is not placed on this CPU.
    fn kind(&self, cpu: usize) -> Option<u32> {
        let rig = &self.rig;
        let is_borrower = |cpu: usize| self.borrowing.iter().any(|&(_, other)| other == cpu);
        let is_free = |cpu: usize| rig.is_idle(cpu) || is_borrower(cpu);
        Some(match (rig.is_idle(cpu), is_in(self.seat, cpu)) {
            (true, true) if rig.is_core_idle(cpu) => 0,
            (false, true) if is_borrower(cpu) => 1,
            (true, false) if rig.is_core_idle(cpu) => 2,
            (true, true) => 3,
            (true, false) if rig.shape.core(cpu).all(is_free) => 4,
            _ => return None,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A waking thread with a seat runs on the best CPU, in this order: an idle core of the seat, a
    /// borrower's CPU in the seat, another idle core, an idle CPU of the seat, an idle CPU beside
    /// borrowers.
    #[test]
    fn woken_thread_runs_on_the_best_cpu_for_its_seat(
        at in 0..4_usize,
        has_node_masks: bool,
        owners: u64,
        borrowers: u64,
        more: u64,
        seat: u64,
        allowed: u64,
        last in any::<prop::sample::Index>(),
    ) {
        let shapes = [Shape(1, 1, 4, 1), Shape(1, 2, 3, 2), Shape(2, 1, 2, 2), Shape(2, 2, 4, 2)];
        let shape = shapes[at];
        let nodes = if has_node_masks { (1 << shape.0) - 1 } else { 0 };
        let variant = HostVariant { nodes, ..HostVariant::default() };
        let rig = Rig::with(shape, SETTINGS, variant);
        let case = Case::new(rig, seat | 1, owners & more, borrowers & more);
        prop_assume!(case.is_some());
        let Some(mut case) = case else { return Ok(()) };
        let last = last.index(shape.cpus());
        let allowed = allowed | 3;
        let cpus = case.rig.all().filter(|&cpu| is_in(allowed, cpu));
        let thread = add_on(&mut case.rig, A, last, set(cpus.clone()));
        let rank = |cpu: usize| case.kind(cpu).map(|kind| (kind, shape.distance(cpu, last), cpu));
        let due = cpus.filter_map(rank).min();
        let before = case.rig.tally();
        case.rig.wake(thread);
        let after = case.rig.tally();
        prop_assert_eq!(cpu_of(&case.rig, thread), due.map(|(_, _, cpu)| cpu), "{:?}", due);
        let Some((kind, _, cpu)) = due else { return Ok(()) };
        // The counter may increase by more than one, because a preempted borrower may reclaim a CPU
        // of its own seat.
        prop_assert_eq!(after.returned > before.returned, kind == 1);
        let borrowed = after.borrowed - before.borrowed;
        if kind != 1 {
            prop_assert_eq!(borrowed, u64::from(!is_in(case.seat, cpu)), "kind {}", kind);
        }
    }
}
