// SPDX-License-Identifier: MIT OR Apache-2.0
//! The colours and strokes of figures, for pages and for files that stand
//! alone.
//!
//! Programs have Okabe and Ito's colours, which people with any colour vision
//! tell apart, then darker (on dark pages lighter) ones of the same; a key
//! letter stands beside each wherever there is room, so that colour is never
//! alone in telling. Policies have colours that also differ in lightness.

use maud::{Markup, html};

/// Style sheet of figures.
pub const CSS: &str = include_str!("figure.css");

/// The hatching that marks borrowed CPUs; once a page.
pub fn patterns() -> Markup {
    html! {
        svg.defs width="0" height="0" aria-hidden="true" {
            defs {
                pattern #hatch width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect.stripe width="3" height="7" {}
                }
            }
        }
    }
}
