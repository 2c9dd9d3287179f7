// SPDX-License-Identifier: GPL-2.0-only
//! The column "placement" of `usher sched explain`: why a thread started or woke in its LLC.
//!
//! [`text`] takes constant time and does not fail.

use usher_scx::{Placement, ThreadState};

/// Returns the reason for the LLC of a thread when it last woke, or started.
pub(super) fn text(sched: &ThreadState) -> String {
    let llc = sched.placed_llc;
    match sched.placed {
        Placement::Unknown => "-".to_owned(),
        Placement::NewNear => {
            format!("new thread: started in LLC {llc}, near its parent")
        }
        Placement::NewIdlest => {
            format!(
                "new thread: started in LLC {llc}, which had a lower load than that of its parent"
            )
        }
        Placement::SameLlc => format!("woken: its LLC {llc} had a free CPU"),
        Placement::SameNode => {
            format!("woken: LLC {llc} of its node had a free CPU, its own LLC had none")
        }
        Placement::OtherNode => {
            format!("woken: LLC {llc} had a free CPU, its own node had none")
        }
        Placement::Waker => {
            format!("woken: exchanges data with the thread that woke it in LLC {llc}")
        }
        Placement::Waits => format!("woken: waited in its LLC {llc}, no CPU was free for it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_scx::Why;

    #[test]
    fn each_reason_names_the_llc() {
        for placed in [
            Placement::NewNear,
            Placement::NewIdlest,
            Placement::SameLlc,
            Placement::SameNode,
            Placement::OtherNode,
            Placement::Waker,
            Placement::Waits,
        ] {
            let sched = ThreadState {
                cpu: 3,
                why: Why::IdleCore,
                waits: None,
                urgent: false,
                burst_average_ns: 0,
                lag_ns: 0,
                seat: None,
                kept_from_seat: false,
                group_weight: 100,
                placed,
                placed_llc: 17,
                capacity: None,
            };
            let text = text(&sched);
            assert!(text.contains("LLC 17"), "{placed:?}: {text}");
        }
    }
}
