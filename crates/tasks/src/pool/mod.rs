// SPDX-License-Identifier: MIT OR Apache-2.0
//! Containers of ready tasks: a worker's own queues (`local_queues`), the slots from which other
//! workers steal (`steal_slots`), and the inboxes into which other threads put tasks (`inbox`).

mod inbox;
mod local_queues;
mod steal_slots;

pub(crate) use inbox::Inbox;
pub(crate) use local_queues::{FORKED, GroupedTask, LocalQueues, T_QUEUES, kept};
pub(crate) use steal_slots::{SLOTS, StealSlots};
