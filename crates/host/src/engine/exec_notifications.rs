// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications that a process of the machine executes a program. They replace frequent scans of
//! idle programs for new processes (`copy_tracker.rs`).
//!
//! 1. Before the scan of an idle program, the loop arms an [`ExecWatch`]: one notification will
//!    follow. The loop polls the descriptor of an armed watch.
//! 2. After a notification, the loop scans the idle programs at once, and does not arm the watch for
//!    50 ms ([`HOLDOFF_NS`]).
//! 3. A notification earlier than 200 ms ([`BUSY_NS`]) after step 1 shows a machine on which
//!    programs are executed all the time. The watch then rests for 2 s ([`BUSY_HOLDOFF_NS`]), and the
//!    loop scans at the interval for idle programs without notifications.

use usher_probe::ExecWatch;

/// Time after a notification in which the watch is not armed.
const HOLDOFF_NS: u64 = 50_000_000;
/// Longest time from the arming to a notification that counts as busy.
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

    /// Arms the watch unless it rests. Returns whether the watch is armed. Call this function before
    /// a scan, because the scan finds only processes that were created earlier.
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

    /// Discards a notification, and lets the watch rest.
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
    fn a_watch_rests_after_a_notification_and_longer_on_a_busy_machine() {
        let Some(watch) = ExecWatch::open(Path::new("/proc")) else {
            usher_skip::skip!("inotify does not report the opening of the dynamic loader");
            return;
        };
        let mut notices = ExecNotifications::new(Some(watch));
        assert!(notices.armed().is_none());
        assert!(notices.arm(0) && notices.arm(900 * MS));
        assert!(notices.armed().is_some());
        notices.notified(1000 * MS);
        assert!(notices.armed().is_none());
        assert!(!notices.arm(1049 * MS));
        assert!(notices.arm(1050 * MS));
        notices.notified(1051 * MS);
        assert!(!notices.arm(3050 * MS));
        assert!(notices.arm(3051 * MS));
    }

    #[test]
    fn a_machine_without_notifications_is_never_watched() {
        let mut notices = ExecNotifications::new(None);
        assert!(!notices.arm(0));
        notices.notified(0);
        assert!(notices.armed().is_none());
    }
}
