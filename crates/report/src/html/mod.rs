// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages: one HTML file each, with nothing to load from elsewhere.

mod frame;
mod measured;
mod mix;
mod other;
mod tables;

pub use mix::{page, page_with};
pub use other::{Cell, Item, Profile, Section, bench_page, profile_page};
