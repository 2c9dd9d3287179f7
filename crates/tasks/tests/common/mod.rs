// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that several tests share.

use usher_tasks::Policy;

/// One policy of each kind.
pub const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: 4,
        s_groups: 4,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];
