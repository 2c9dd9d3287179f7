// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables, figures, HTML pages and Perfetto traces of the results of mixes and benchmarks.
//!
//! This crate converts data to text without any I/O: it uses no files, clock, terminal or
//! environment. [`data`] holds the results of a mix, [`stats`] and [`summary`] evaluate them;
//! [`copies`] shows measured numbers of copies;
//! [`table`] formats them for a terminal, [`html`] as a page, [`figure`] as SVG, [`trace`] for
//! Perfetto.

pub mod copies;
pub mod data;
pub mod figure;
pub mod html;
pub mod layout;
pub mod stats;
pub mod summary;
pub mod table;
pub mod text;
pub mod trace;
