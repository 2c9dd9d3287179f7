// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches one program that pins its threads. The program's seat in `usher status` must contain the
//! CPUs of all pins, or the program has no seat and `usher status` gives the pins as the reason.
//!
//! 1. With each reading of `usher status`, the affinity masks of all threads of the program and its
//!    descendants (8 levels of the process tree) are read from `/proc`.
//! 2. A mask that differs from the usable CPUs counts as a pin. A mask within the program's seat is
//!    always correct.
//! 3. If a pin is outside the seat, or outside the pins that the daemon gives as the reason, the
//!    state is wrong. A wrong state is a failure only after 2 s, because the daemon notices a pin
//!    within a second.

use std::time::{Duration, Instant};

use usher_model::CpuSet;

use super::observer::{ProgramState, numbers};

/// Time limit until the daemon notices a pin: one second by design, and one second for delays of
/// the daemon and the observer on a loaded machine.
const NOTICE_MAX: Duration = Duration::from_secs(2);
/// Number of levels of the process tree that are searched, from the program's first process on.
const DEPTH_MAX: usize = 8;

/// Observations of one program.
#[derive(Debug)]
pub struct PinWatch {
    name: String,
    usable: CpuSet,
    /// Time at which the state became wrong: the seat excludes a pin, or there is no seat and no
    /// reason. `None`: the state is correct.
    wrong_since: Option<Instant>,
    /// The longest time for which the state was wrong.
    pub noticed_after: Duration,
    /// A wrong state that lasted longer than [`NOTICE_MAX`], as text.
    pub failure: Option<String>,
    /// Numbers of readings: with pinned threads (`pinned`); of these, with a seat that contains the
    /// pins (`contained`), and without a seat but with the reason (`reasoned`).
    pub pinned: usize,
    pub contained: usize,
    pub reasoned: usize,
}

impl PinWatch {
    /// Returns a watch of the program `name`. Threads of the program that are not pinned may use
    /// the CPUs `usable`.
    pub fn new(name: String, usable: CpuSet) -> Self {
        Self {
            name,
            usable,
            wrong_since: None,
            noticed_after: Duration::ZERO,
            failure: None,
            pinned: 0,
            contained: 0,
            reasoned: 0,
        }
    }

    /// Name of the program in `usher status`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Evaluates a reading of the program's state; `None`: the program is not managed.
    pub fn observe(&mut self, seen: Option<&ProgramState>) {
        let Some(seen) = seen else {
            self.wrong_since = None;
            return;
        };
        let masks = masks_below(seen.pid);
        let pins: Vec<_> = masks.iter().filter(|&mask| *mask != self.usable).collect();
        self.evaluate(seen, &pins);
    }

    fn evaluate(&mut self, seen: &ProgramState, pins: &[&CpuSet]) {
        // A mask within the seat may be the mask that Usher set, and is no wrong pin in any case.
        let outside = |pin: &&&CpuSet| match (&seen.pinned_to, seen.seat.is_empty()) {
            (_, false) => !pin.is_subset(&seen.seat),
            (Some(reason), true) => !pin.is_subset(reason),
            (None, true) => true,
        };
        let wrong = pins.iter().find(outside);
        if !pins.is_empty() {
            self.pinned += 1;
            let is_right = usize::from(wrong.is_none());
            match seen.seat.is_empty() {
                true => self.reasoned += is_right,
                false => self.contained += is_right,
            }
        }
        let Some(wrong) = wrong else {
            self.wrong_since = None;
            return;
        };
        let since = *self.wrong_since.get_or_insert_with(Instant::now);
        self.noticed_after = self.noticed_after.max(since.elapsed());
        if since.elapsed() > NOTICE_MAX {
            let reason = seen.pinned_to.as_ref().map(CpuSet::to_string);
            self.failure = Some(format!(
                "a thread is pinned to the CPUs {wrong}, but the seat is '{}' and the reported \
                 reason {reason:?}",
                seen.seat
            ));
        }
    }
}

/// Returns the masks of all threads of a process and of its descendants.
fn masks_below(pid: i32) -> Vec<CpuSet> {
    let mut masks = Vec::new();
    let mut level = vec![pid];
    for _ in 0..DEPTH_MAX {
        let mut below = Vec::new();
        for pid in level {
            for tid in numbers(&format!("/proc/{pid}/task")) {
                let dir = format!("/proc/{pid}/task/{tid}");
                masks.extend(mask_in(&dir));
                let children = std::fs::read_to_string(format!("{dir}/children"));
                let children = children.unwrap_or_default();
                below.extend(
                    children
                        .split(' ')
                        .filter_map(|one| one.parse::<i32>().ok()),
                );
            }
        }
        level = below;
    }
    masks
}

fn mask_in(dir: &str) -> Option<CpuSet> {
    let status = std::fs::read_to_string(format!("{dir}/status")).ok()?;
    // A zombie process still has the mask that it had at its end, and is ignored.
    if status.lines().any(|line| line.starts_with("State:\tZ")) {
        return None;
    }
    let lines = status.lines();
    let mut lists = lines.filter_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    lists.next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn seen(seat: &str, pinned_to: Option<&str>) -> ProgramState {
        ProgramState {
            pid: 1,
            seat: cpus(seat),
            pinned_to: pinned_to.map(cpus),
        }
    }

    #[test]
    fn a_pin_is_within_the_seat_or_has_a_reason() {
        let right = |seen: ProgramState, pin: &str| {
            let mut watch = PinWatch::new("p".to_owned(), cpus("0-3"));
            watch.evaluate(&seen, &[&cpus(pin)]);
            assert_eq!(watch.pinned, 1);
            watch.wrong_since.is_none()
        };
        assert!(right(seen("0-1", None), "1"));
        assert!(!right(seen("0-1", None), "2"));
        assert!(!right(seen("0-1", None), "1-2"));
        assert!(right(seen("", Some("2-3")), "2"));
        assert!(!right(seen("", Some("2-3")), "1"));
        assert!(!right(seen("", None), "1"));
    }

    #[test]
    fn a_wrong_seat_is_a_failure_only_when_it_lasts() {
        let mut watch = PinWatch::new("p".to_owned(), cpus("0-3"));
        watch.evaluate(&seen("0", None), &[&cpus("1")]);
        assert!(watch.failure.is_none());
        watch.wrong_since = Instant::now().checked_sub(2 * NOTICE_MAX);
        watch.evaluate(&seen("0", None), &[&cpus("1")]);
        assert!(watch.failure.is_some());
        watch.evaluate(&seen("", Some("1")), &[&cpus("1")]);
        assert!(watch.wrong_since.is_none());
    }
}
