// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where ready tasks wait: what a worker has to itself, what it lays out for
//! others, what others put in for it.

mod inbox;
mod lanes;
mod shelf;

pub(crate) use inbox::Inbox;
pub(crate) use lanes::{CHAIN_MAX, FEW, FORKED, LANES, Lanes};
pub(crate) use shelf::{PLACES, Shelf};
