// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures how much CPU time is idle while threads wait that may use it.
//!
//! - A CPU is *idle* if it runs no thread, and *called* if it has also been requested to schedule or
//!   is still in its transition to idle.
//! - The number of *unserved* CPUs is the largest number of idle CPUs to which waiting threads can be
//!   assigned, one each and within their affinity, in addition to the called CPUs. [`IdleTime`] has
//!   the integral of this number over time.
//! - The longest wait is the longest time for which one thread waits and may, all the time, use an
//!   idle CPU; called CPUs are idle, too. It includes waits that the end of the run interrupts.

/// State of the machine between two events. CPU sets are bitmasks.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Idle CPUs that are not called.
    pub idle: u64,
    pub called: u64,
    /// Number and allowed CPUs of each waiting thread.
    pub waiting: Vec<(usize, u64)>,
}

/// Totals since the start.
#[derive(Debug, Default)]
pub struct IdleTime {
    pub unserved_ns: u64,
    pub longest_ns: u64,
    /// For each thread: how long it has waited although a CPU was idle, until the last event.
    waits_ns: Vec<u64>,
}

impl IdleTime {
    /// Adds a time during which nothing changed.
    pub fn add(&mut self, snapshot: &Snapshot, ns: u64) {
        let idle = snapshot.idle | snapshot.called;
        let before = std::mem::take(&mut self.waits_ns);
        for &(thread, _) in snapshot.waiting.iter().filter(|(_, cpus)| cpus & idle != 0) {
            let wait_ns = before.get(thread).unwrap_or(&0) + ns;
            if self.waits_ns.len() <= thread {
                self.waits_ns.resize(thread + 1, 0);
            }
            self.waits_ns[thread] = wait_ns;
            self.longest_ns = self.longest_ns.max(wait_ns);
        }
        self.unserved_ns += unserved(snapshot) * ns;
    }
}

/// Returns the number of unserved CPUs.
fn unserved(snapshot: &Snapshot) -> u64 {
    if snapshot
        .waiting
        .iter()
        .all(|(_, cpus)| cpus & snapshot.idle == 0)
    {
        return 0;
    }
    let masks: Vec<u64> = snapshot.waiting.iter().map(|(_, cpus)| *cpus).collect();
    let all = assigned(&masks, snapshot.idle | snapshot.called);
    all - assigned(&masks, snapshot.called)
}

/// Returns the largest number of threads that can be assigned to different CPUs of a set (bipartite
/// matching by augmenting paths, Kuhn 1955).
fn assigned(masks: &[u64], cpus: u64) -> u64 {
    let mut owners = [None; 64];
    let mut count = 0;
    for thread in 0..masks.len() {
        let mut visited = 0;
        count += u64::from(augment(masks, cpus, thread, &mut visited, &mut owners));
    }
    count
}

/// Assigns a thread to a CPU, and moves threads that are assigned already if necessary.
fn augment(
    masks: &[u64],
    cpus: u64,
    thread: usize,
    visited: &mut u64,
    owners: &mut [Option<usize>; 64],
) -> bool {
    loop {
        let open = masks[thread] & cpus & !*visited;
        if open == 0 {
            return false;
        }
        let cpu = open.trailing_zeros() as usize;
        *visited |= 1 << cpu;
        if owners[cpu].is_none_or(|owner| augment(masks, cpus, owner, visited, owners)) {
            owners[cpu] = Some(thread);
            return true;
        }
    }
}

#[test]
fn called_cpus_take_waiting_threads_first() {
    let snapshot = |idle, called, masks: &[u64]| Snapshot {
        idle,
        called,
        waiting: masks.iter().copied().enumerate().collect(),
    };
    for (expected, snapshot) in [
        (0, snapshot(0b1, 0, &[])),
        (0, snapshot(0b1, 0, &[0b110])),
        (1, snapshot(0b1, 0, &[0b11, 0b11])),
        (0, snapshot(0b1, 0b10, &[0b11])),
        (1, snapshot(0b1, 0b10, &[0b11, 0b11])),
        (1, snapshot(0b1, 0b10, &[0b01])),
        // The first thread has to leave CPU 0 to the second thread.
        (2, snapshot(0b11, 0, &[0b11, 0b01])),
        (1, snapshot(0b11, 0, &[0b01, 0b01])),
    ] {
        assert_eq!(unserved(&snapshot), expected, "{snapshot:?}");
    }
}

#[test]
fn longest_wait_includes_the_wait_at_the_end() {
    let mut time = IdleTime::default();
    let waits = |thread, idle| Snapshot {
        idle,
        called: 0,
        waiting: vec![(thread, 0b1)],
    };
    time.add(&waits(0, 0b1), 3);
    time.add(&waits(0, 0b10), 7);
    assert_eq!((time.unserved_ns, time.longest_ns), (3, 3));
    time.add(&waits(0, 0b1), 2);
    time.add(&waits(1, 0b1), 2);
    assert_eq!((time.unserved_ns, time.longest_ns), (7, 3));
    time.add(&waits(1, 0b1), 2);
    assert_eq!((time.unserved_ns, time.longest_ns), (9, 4));
}
