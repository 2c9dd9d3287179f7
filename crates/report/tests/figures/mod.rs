// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of all figures: well-formed XML, coordinates within the figure, no overlapping texts.

#![allow(clippy::expect_used)] // a panic is a failed test

use roxmltree::{Document, Node};

/// The SVG elements of a page.
pub fn figures_of(page: &str) -> Vec<&str> {
    let mut figures = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find("<svg") {
        let end = rest[start..]
            .find("</svg>")
            .map(|e| start + e + "</svg>".len());
        let end = end.expect("an svg element without an end");
        figures.push(&rest[start..end]);
        rest = &rest[end..];
    }
    figures
}

/// Checks every figure of a page, or a file with one figure.
pub fn check_figures(page: &str) {
    for figure in figures_of(page) {
        let document = Document::parse(figure).expect("a figure that is not well-formed");
        let root = document.root_element();
        let Some(size) = root.attribute("viewBox") else {
            continue;
        };
        let size: Vec<f64> = size
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let nested = document
            .descendants()
            .any(|n| n.tag_name().name() == "g" && n.attribute("transform").is_some());
        for node in document.descendants().filter(Node::is_element) {
            check_numbers(node, (!nested).then_some((size[2], size[3])));
        }
        check_texts(&document, root.attribute("aria-label").unwrap_or("?"));
    }
}

fn check_numbers(node: Node, size: Option<(f64, f64)>) {
    for name in [
        "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "r",
    ] {
        let Some(value) = node.attribute(name) else {
            continue;
        };
        let value: f64 = value.parse().expect("a coordinate that is not a number");
        assert!(value.is_finite() && value > -10.0, "{name} is {value}");
        if let Some((width, height)) = size {
            let most = if name.contains('y') || name == "height" {
                height
            } else {
                width
            };
            assert!(value <= most + 0.1, "{name} {value} lies outside of {most}");
        }
    }
    for number in node.attribute("points").unwrap_or("").split([' ', ',']) {
        assert!(number.is_empty() || number.parse::<f64>().expect("a point").is_finite());
    }
}

struct Shown {
    text: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Returns a bounding box for a text, from a mean letter width that is wide enough for most fonts.
fn shown(node: Node) -> Shown {
    let number = |name: &str| {
        node.attribute(name)
            .and_then(|v| v.parse::<f64>().ok())
            .expect("a place")
    };
    let class = node.attribute("class").unwrap_or("");
    let has = |name: &str| class.split(' ').any(|c| c == name);
    let size = match () {
        _ if has("title") => 13.0,
        _ if has("label") => 12.5,
        _ if has("small") => 11.0,
        _ => 10.5,
    };
    let text: String = node
        .descendants()
        .filter_map(|n| n.is_text().then(|| n.text()).flatten())
        .collect();
    let width = text.chars().count() as f64 * size * 0.52;
    if has("turned") {
        // A text from bottom to top, with its middle at the coordinates.
        let middle = number("y");
        return Shown {
            text,
            left: number("x") - size * 0.72,
            right: number("x"),
            top: middle - width / 2.0,
            bottom: middle + width / 2.0,
        };
    }
    let left = match () {
        _ if has("end") => number("x") - width,
        _ if has("mid") || has("key") || has("marktext") => number("x") - width / 2.0,
        _ => number("x"),
    };
    Shown {
        text,
        left,
        right: left + width,
        top: number("y") - size * 0.72,
        bottom: number("y"),
    }
}

fn check_texts(document: &Document, figure: &str) {
    let texts: Vec<Shown> = document
        .descendants()
        .filter(|n| n.has_tag_name("text") || n.tag_name().name() == "text")
        .map(shown)
        .collect();
    for (i, a) in texts.iter().enumerate() {
        for b in &texts[i + 1..] {
            let apart =
                a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
            assert!(apart, "in '{figure}' '{}' lies on '{}'", a.text, b.text);
        }
    }
}
