// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications that a process of the machine executes a program. They replace frequent scans of
//! idle programs for new processes (`copy_tracker.rs`).
//!
//! 1. Before the scan of an idle program, the loop arms an [`ExecWatch`]: one notification will
//!    follow. The loop polls the descriptor of an armed watch.
//! 2. After a notification, the loop scans the idle programs at once. A hold-off of 50 ms
//!    ([`HOLDOFF_NS`]) begins, in which the loop does not arm the watch.
//! 3. A notification less than 200 ms ([`BUSY_NS`]) after step 1 shows a machine on which programs
//!    are executed all the time. The hold-off is then 2 s ([`BUSY_HOLDOFF_NS`]). In a hold-off, the
//!    loop scans at the interval for idle programs without notifications.
//!
//! Bound: the watch causes at most five wake-ups per second. Each call makes at most two system
//! calls.

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
    /// Time of the arming, if the watch is armed.
    armed_ns: Option<u64>,
    holdoff_until_ns: u64,
}

impl ExecNotifications {
    /// Creates the state of a watch that is not armed.
    pub fn new(watch: Option<ExecWatch>) -> Self {
        Self {
            watch,
            armed_ns: None,
            holdoff_until_ns: 0,
        }
    }

    /// Arms the watch, except in a hold-off. Returns whether the watch is armed. Call this function
    /// before a scan, because the scan finds only processes that were created earlier.
    pub fn arm(&mut self, at_ns: u64) -> bool {
        let Some(watch) = self
            .watch
            .as_ref()
            .filter(|_| at_ns >= self.holdoff_until_ns)
        else {
            return false;
        };
        if self.armed_ns.is_none() {
            // The kernel reports the end of the previous watch, which may follow its notification.
            watch.disarm();
        }
        // A watch that is armed already is armed again, because an upgrade may have replaced the
        // watched file.
        let is_armed = watch.arm();
        self.armed_ns = is_armed.then(|| self.armed_ns.unwrap_or(at_ns));
        is_armed
    }

    /// Returns the armed watch, whose descriptor must be polled.
    pub fn armed(&self) -> Option<&ExecWatch> {
        self.watch.as_ref().filter(|_| self.armed_ns.is_some())
    }

    /// Discards a notification, and begins a hold-off.
    pub fn notified(&mut self, at_ns: u64) {
        self.watch.as_ref().map(ExecWatch::disarm);
        if let Some(armed_ns) = self.armed_ns.take() {
            let is_busy = at_ns.saturating_sub(armed_ns) < BUSY_NS;
            self.holdoff_until_ns = at_ns
                + match is_busy {
                    true => BUSY_HOLDOFF_NS,
                    false => HOLDOFF_NS,
                };
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
    fn a_machine_without_notifications_is_never_watched() {
        let mut notifications = ExecNotifications::new(None);
        assert!(!notifications.arm(0));
        notifications.notified(0);
        assert!(notifications.armed().is_none());
    }
}
