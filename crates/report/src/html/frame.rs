// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frame of every page: document head, style sheets, banner and content in one self-contained
//! HTML document, and the scrollable container of wide figures.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::figure::style;

const PAGE_CSS: &str = include_str!("page.css");

/// Returns a whole page. `banner` is displayed across the top of the page.
pub(crate) fn frame(title: &str, banner: Option<&str>, content: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content="usher";
                title { (title) }
                style { (PreEscaped(style::CSS)) (PreEscaped(PAGE_CSS)) }
            }
            body {
                (style::patterns())
                @if let Some(banner) = banner { div.banner role="note" { (banner) } }
                (content)
                footer { "Report written by usher " (env!("CARGO_PKG_VERSION")) ". The page loads no external \
                                                                                 resources." }
            }
        }
    }
    .into_string()
}

/// A figure that may be wider than the window.
pub(crate) fn figure(markup: &Markup) -> Markup {
    html! { div.figurebox { div.scroll { (markup) } } }
}
