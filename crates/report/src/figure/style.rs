// SPDX-License-Identifier: MIT OR Apache-2.0
//! Colours and strokes of figures, for pages and standalone files.
//!
//! The first programs get the colours of Okabe and Ito, which are distinguishable with any colour
//! vision. Further programs get darker variants of these colours (lighter variants on dark pages).
//! Where there is space, a key letter accompanies the colour, so that colour is not the only
//! distinction. The colours of policies also differ in lightness.

use maud::{Markup, html};

/// Style sheet of figures.
pub const CSS: &str = include_str!("figure.css");

/// The patterns of shared time (hatching) and of borrowed CPUs (dots), which each page contains once.
pub fn patterns() -> Markup {
    html! {
        svg.defs width="0" height="0" aria-hidden="true" {
            defs {
                pattern #hatch width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect.stripe width="2" height="7" {}
                }
                pattern #dotted width="6" height="6" patternUnits="userSpaceOnUse" {
                    circle.spot cx="3" cy="3" r="1.5" {}
                }
            }
        }
    }
}
