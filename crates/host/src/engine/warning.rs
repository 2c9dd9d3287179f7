// SPDX-License-Identifier: MIT OR Apache-2.0
//! A warning of the control loop, which holds until its topic is resolved.

use usher_model::ProgramId;

/// The subject of a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarningTopic {
    /// The set of usable CPUs.
    Cpus,
    /// A lock of another process on the profile store.
    StoreLock,
    /// The keeper process.
    Keeper,
    /// One program, until its management ends.
    Program(ProgramId),
    /// Threads and processes that a program created after it was seated.
    Refresh(ProgramId),
    /// A topic that is never resolved. The warning holds until the engine ends.
    Other,
}

/// A warning and its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Warning {
    pub topic: WarningTopic,
    pub text: String,
}
