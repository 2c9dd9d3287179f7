// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications that a process of the machine executes a program. For idle programs, they replace
//! frequent scans for new processes (`copy_tracker.rs`). For *active programs*, which are all
//! programs that are not idle, they cause scans before a new process can read its affinity mask.
//!
//! 1. Before the scan of a program, the loop arms an [`ExecWatch`]: one notification will follow.
//!    The loop polls the descriptor of an armed watch.
//! 2. After a notification, the loop scans the idle programs at once and begins a scan burst for
//!    each active program (`burst_scans.rs`), if the watch was armed for them.
//! 3. *Idle programs.* A hold-off of 50 ms ([`HOLDOFF_NS`]) begins after a notification, in which
//!    the loop does not arm the watch for idle programs. A notification less than 200 ms
//!    ([`BUSY_NS`]) after step 1 shows a machine on which programs are executed all the time. The
//!    hold-off is then 2 s ([`BUSY_HOLDOFF_NS`]). In a hold-off, the loop scans at the interval for
//!    idle programs without notifications. A notification that was already due when the watch was
//!    armed for idle programs counts as one after this arming.
//! 4. *Active programs.* There is no hold-off. The budget of the bursts limits the CPU time.
//!
//! Bound: at most five wake-ups per second for idle programs. For active programs, at most one
//! wake-up per scan, because only a scan arms the watch again, and one per launched program. Each
//! call makes at most two system calls.

use usher_probe::ExecWatch;

/// Time after a notification in which the watch is not armed.
const HOLDOFF_NS: u64 = 50_000_000;
/// A machine counts as busy if the notification follows the arming within this time.
const BUSY_NS: u64 = 200_000_000;
/// Time after a notification on a busy machine in which the watch is not armed.
const BUSY_HOLDOFF_NS: u64 = 2_000_000_000;

/// The watch and its state.
#[derive(Debug)]
pub(super) struct ExecNotifications {
    /// `None` if there are no notifications on this machine.
    watch: Option<ExecWatch>,
    /// Time of the arming, if the watch is armed for idle programs.
    armed_ns: Option<u64>,
    /// Whether the watch is armed for active programs.
    is_armed_for_active: bool,
    holdoff_until_ns: u64,
}

/// For which programs the watch of a notification was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExecNotification {
    /// Whether the watch was armed for idle programs.
    pub for_idle: bool,
    /// Whether the watch was armed for active programs.
    pub for_active: bool,
}

impl ExecNotifications {
    /// Creates the state of a watch that is not armed.
    pub fn new(watch: Option<ExecWatch>) -> Self {
        Self {
            watch,
            armed_ns: None,
            is_armed_for_active: false,
            holdoff_until_ns: 0,
        }
    }

    /// Returns whether there are notifications on this machine.
    pub fn exist(&self) -> bool {
        self.watch.is_some()
    }

    /// Arms the watch for idle programs, except in a hold-off. Returns whether the watch is armed for
    /// them. Call this function before a scan, because the scan finds only processes that were
    /// created earlier.
    pub fn arm(&mut self, at_ns: u64) -> bool {
        if at_ns < self.holdoff_until_ns {
            return false;
        }
        let is_armed = self.arm_watch();
        self.armed_ns = is_armed.then(|| self.armed_ns.unwrap_or(at_ns));
        is_armed
    }

    /// Arms the watch for active programs, even in a hold-off. Call this function before a scan.
    pub fn arm_for_active(&mut self) {
        self.is_armed_for_active = self.arm_watch();
    }

    /// Ignores a later notification for active programs, because there are no programs any more.
    pub fn forget_active(&mut self) {
        self.is_armed_for_active = false;
    }

    fn arm_watch(&mut self) -> bool {
        let is_armed = self.armed().is_some();
        let Some(watch) = &self.watch else {
            return false;
        };
        if !is_armed {
            // The kernel reports the end of the previous watch, which may follow its notification.
            watch.disarm();
        }
        // A watch that is armed already is armed again, because an upgrade may have replaced the
        // watched file.
        watch.arm()
    }

    /// Returns the armed watch, whose descriptor must be polled.
    pub fn armed(&self) -> Option<&ExecWatch> {
        let is_armed = self.is_armed_for_active || self.armed_ns.is_some();
        self.watch.as_ref().filter(|_| is_armed)
    }

    /// Discards a notification, and begins a hold-off for idle programs if the watch was armed for
    /// them.
    pub fn notified(&mut self, at_ns: u64) -> ExecNotification {
        self.watch.as_ref().map(ExecWatch::disarm);
        let armed_ns = self.armed_ns.take();
        if let Some(armed_ns) = armed_ns {
            let is_busy = at_ns.saturating_sub(armed_ns) < BUSY_NS;
            self.holdoff_until_ns = at_ns
                + match is_busy {
                    true => BUSY_HOLDOFF_NS,
                    false => HOLDOFF_NS,
                };
        }
        ExecNotification {
            for_idle: armed_ns.is_some(),
            for_active: std::mem::take(&mut self.is_armed_for_active),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_notification_starts_a_holdoff_which_is_longer_on_a_busy_machine() {
        let Some(watch) = ExecWatch::open(Path::new("/proc")) else {
            usher_skip::skip!("inotify does not report the opening of the dynamic loader");
            return;
        };
        let mut notifications = ExecNotifications::new(Some(watch));
        assert!(notifications.armed().is_none());
        assert!(notifications.arm(0) && notifications.arm(900 * MS));
        assert!(notifications.armed().is_some());
        notifications.notified(1000 * MS);
        assert!(notifications.armed().is_none());
        assert!(!notifications.arm(1049 * MS));
        assert!(notifications.arm(1050 * MS));
        notifications.notified(1051 * MS);
        assert!(!notifications.arm(3050 * MS));
        assert!(notifications.arm(3051 * MS));
    }

    #[test]
    fn active_programs_are_watched_in_a_holdoff() {
        let Some(watch) = ExecWatch::open(Path::new("/proc")) else {
            usher_skip::skip!("inotify does not report the opening of the dynamic loader");
            return;
        };
        let mut notifications = ExecNotifications::new(Some(watch));
        assert!(notifications.arm(0));
        notifications.notified(MS);
        assert!(!notifications.arm(2 * MS));
        notifications.arm_for_active();
        assert!(notifications.armed().is_some());
        let active = ExecNotification {
            for_idle: false,
            for_active: true,
        };
        assert_eq!(notifications.notified(3 * MS), active);
        // A notification for active programs prolongs no hold-off.
        assert!(notifications.arm(2001 * MS));
    }

    #[test]
    fn a_machine_without_notifications_is_never_watched() {
        let mut notifications = ExecNotifications::new(None);
        assert!(!notifications.arm(0));
        notifications.notified(0);
        notifications.arm_for_active();
        assert!(notifications.armed().is_none());
    }
}
