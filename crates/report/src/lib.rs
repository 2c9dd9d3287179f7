// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables, figures, HTML pages and Perfetto traces.
//!
//! Everything here turns data into text: no file, no clock, no terminal, no
//! environment is touched. [`data`] says what a mix gave, [`stats`] and
//! [`summary`] what it means; [`table`] shows it on a terminal, [`html`] on a
//! page, [`figure`] as pictures, [`trace`] in Perfetto.

pub mod data;
pub mod figure;
pub mod html;
pub mod layout;
pub mod stats;
pub mod summary;
pub mod table;
pub mod text;
pub mod trace;
