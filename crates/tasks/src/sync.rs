// SPDX-License-Identifier: MIT OR Apache-2.0
//! What threads share, from the standard library or, to be explored in every
//! interleaving, from loom. Lock-free parts take it from here alone.

#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

#[cfg(not(feature = "loom"))]
pub(crate) use std::thread;

#[cfg(feature = "loom")]
pub(crate) use loom::thread;
