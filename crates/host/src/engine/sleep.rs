// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop's sleep between two iterations: `poll` on the descriptors that `world.rs` lists,
//! until the next deadline or, if the CPU time for periodic work is used up, until the end of the
//! pause.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProgramId;

use super::clock::now_ns;
use super::world::{HOUSEKEEPING_NS, RealWorld, SCAN_NS};

/// The owner of a polled descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakeupSource {
    /// The channel of requests.
    Request,
    /// Notifications of the meter.
    Meter,
    /// Notifications of executed programs.
    Executed,
    /// The keeper, which has died.
    Keeper,
    /// A process of a program, which has ended.
    Program(ProgramId),
}

impl RealWorld {
    /// Returns whether the periodic work pauses because its CPU time is used up.
    pub(super) fn is_paused(&self) -> bool {
        self.state.cpu_budget.is_paused(now_ns())
    }

    /// Sleeps until a descriptor is ready or a deadline passes: `deadline_ns` of the policy, or that
    /// of other periodic work or of the housekeeping. Returns the programs with a ready descriptor.
    pub(super) fn sleep_until(&mut self, deadline_ns: Option<u64>) -> Vec<ProgramId> {
        let notify_ns = self.state.background.notify_from_ns();
        let holdoff_ns = notify_ns.filter(|from_ns| *from_ns > now_ns());
        let is_paused = self.is_paused();
        let until_ns = self.wakes_at_ns([deadline_ns, holdoff_ns], is_paused);
        let timeout = until_ns.map(|until_ns| timespec(until_ns.saturating_sub(now_ns())));
        let handles_notify = notify_ns.is_some() && holdoff_ns.is_none() && !is_paused;
        let polled = self.polled(handles_notify).into_iter();
        let (sources, mut fds): (Vec<WakeupSource>, Vec<PollFd<'_>>) = polled.unzip();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // `poll` was interrupted or had not enough memory. The loop calls it again.
            return Vec::new();
        }
        let ready = sources.into_iter().zip(&fds);
        let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
        let ready: Vec<WakeupSource> = ready.map(|(source, _)| source).collect();
        drop(fds);
        let mut programs = Vec::new();
        for source in ready {
            match source {
                // The loop reads the requests after each sleep.
                WakeupSource::Request => {}
                WakeupSource::Meter => self.state.background.notified = true,
                WakeupSource::Executed => self.program_executed(),
                WakeupSource::Keeper => self.replace_keeper(),
                WakeupSource::Program(id) => programs.push(id),
            }
        }
        programs
    }

    /// Returns the earliest deadline; `None` if there is none. `periodic` are deadlines of periodic
    /// work, to which those of scans are added. While the periodic work pauses, it has the end of
    /// the pause as its deadline.
    fn wakes_at_ns(&self, periodic: [Option<u64>; 2], is_paused: bool) -> Option<u64> {
        let housekeeping_ns = self.state.housekeeping_ns + HOUSEKEEPING_NS;
        let housekeeping_ns = (!self.state.members.is_empty()).then_some(housekeeping_ns);
        let scan_ns = self.state.scanned_ns + SCAN_NS;
        let scan_ns = self.actuator.is_scanning().then_some(scan_ns);
        let scans = [scan_ns, self.copies_due_ns()];
        let periodic_ns = match is_paused {
            true => Some(self.state.cpu_budget.pause_until_ns()),
            false => periodic.into_iter().chain(scans).flatten().min(),
        };
        periodic_ns.into_iter().chain(housekeeping_ns).min()
    }

    /// Returns the descriptors to poll. `handles_notify`: also the notifications of the meter.
    fn polled(&self, handles_notify: bool) -> Vec<(WakeupSource, PollFd<'_>)> {
        let borrowed = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let requests = borrowed(self.requests.wakeup_fd());
        let meter = self.state.background.notify_fd();
        let meter = meter.filter(|_| handles_notify).map(borrowed);
        let watch = self.exec_notifications.armed();
        let watch = watch.map(|watch| PollFd::new(watch, PollFlags::IN));
        // The pidfd of a dead keeper stays readable. Therefore the pidfd is polled only when a
        // replacement is due; the loop would otherwise busy-wait.
        let is_due = self.state.keeper_due_ns <= now_ns();
        let keeper = self.keeper.as_ref().filter(|_| is_due);
        let keeper = keeper.map(|keeper| borrowed(keeper.pidfd()));
        let members = self.state.members.iter();
        let members = members.map(|(&id, one)| (WakeupSource::Program(id), one.watch.poll_fd()));
        std::iter::once((WakeupSource::Request, requests))
            .chain(meter.map(|fd| (WakeupSource::Meter, fd)))
            .chain(watch.map(|fd| (WakeupSource::Executed, fd)))
            .chain(keeper.map(|fd| (WakeupSource::Keeper, fd)))
            .chain(members)
            .collect()
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}
