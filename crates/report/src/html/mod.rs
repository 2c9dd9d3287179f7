// SPDX-License-Identifier: MIT OR Apache-2.0
//! HTML pages about mixes, benchmarks and program profiles, each a single file without external
//! resources. Foreign text is escaped.

mod frame;
mod measured;
mod mix;
mod other;
mod tables;

pub use mix::{page, page_with};
pub use other::{Cell, Item, Profile, Section, bench_page, profile_page};
