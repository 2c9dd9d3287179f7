// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop's sleep between two iterations: `poll` on the descriptors that `world.rs` lists,
//! until the next deadline or, if the CPU time for periodic work is used up, until the end of the
//! pause.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProgramId;

use super::clock::now_ns;
use super::world::{HOUSEKEEPING_NS, RealWorld, SCAN_NS};

impl RealWorld {
    /// Returns whether the periodic work pauses because its CPU time is used up.
    pub(super) fn is_paused(&self) -> bool {
        self.state.cpu_budget.is_paused(now_ns())
    }

    /// Sleeps until a descriptor is ready or a deadline passes: `deadline_ns` of the policy, or that
    /// of other periodic work or of the housekeeping. Returns the programs with a ready descriptor.
    pub(super) fn sleep_until(&mut self, deadline_ns: Option<u64>) -> Vec<ProgramId> {
        let housekeeping_ns = self.state.housekeeping_ns + HOUSEKEEPING_NS;
        let housekeeping_ns = (!self.state.members.is_empty()).then_some(housekeeping_ns);
        let notify_ns = self.state.background.notify_from_ns();
        let holdoff_ns = notify_ns.filter(|from_ns| *from_ns > now_ns());
        let scan_ns = self.state.scanned_ns + SCAN_NS;
        let scan_ns = self.actuator.is_scanning().then_some(scan_ns);
        let copies_ns = self.copies_due_ns();
        let periodic = [deadline_ns, holdoff_ns, scan_ns, copies_ns];
        let is_paused = self.is_paused();
        let periodic_ns = match is_paused {
            true => Some(self.state.cpu_budget.pause_until_ns()),
            false => periodic.into_iter().flatten().min(),
        };
        let until_ns = periodic_ns.into_iter().chain(housekeeping_ns).min();
        let timeout = until_ns.map(|until_ns| timespec(until_ns.saturating_sub(now_ns())));
        let requests = PollFd::from_borrowed_fd(self.requests.wakeup_fd(), PollFlags::IN);
        // The pidfd of a dead keeper stays readable. Therefore the pidfd is polled only when a
        // replacement is due; the loop would otherwise busy-wait.
        let is_due = self.state.keeper_due_ns <= now_ns();
        let keeper = self.keeper.as_ref().filter(|_| is_due);
        let keeper = keeper.map(|k| PollFd::from_borrowed_fd(k.pidfd(), PollFlags::IN));
        let handles_notify = notify_ns.is_some() && holdoff_ns.is_none() && !is_paused;
        let meter = self.state.background.notify_fd().filter(|_| handles_notify);
        let meter = meter.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let watch = self.exec_notifications.armed();
        let watch = watch.map(|watch| PollFd::new(watch, PollFlags::IN));
        let members = self.state.members.values().map(|m| m.watch.poll_fd());
        let (has_meter, has_watch) = (meter.is_some(), watch.is_some());
        let mut fds: Vec<_> = [requests]
            .into_iter()
            .chain(meter)
            .chain(watch)
            .chain(keeper)
            .chain(members)
            .collect();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // `poll` was interrupted or had not enough memory. The loop calls it again.
            return Vec::new();
        }
        let first = fds.len() - self.state.members.len();
        let is_ready = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
        let watched = 1 + usize::from(has_meter);
        let others = watched + usize::from(has_watch);
        let notified = is_ready(&fds[1..watched]);
        let has_executed = is_ready(&fds[watched..others]);
        let keeper_died = is_ready(&fds[others..first]);
        let ready = fds[first..].iter().zip(self.state.members.keys());
        let ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
        let ready = ready.map(|(_, id)| *id).collect();
        drop(fds);
        self.state.background.notified |= notified;
        if has_executed {
            self.program_executed();
        }
        if keeper_died {
            self.replace_keeper();
        }
        ready
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}
